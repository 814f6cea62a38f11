# SPDX-License-Identifier: Apache-2.0
"""A card is cleaned whenever a guest gives it back, once and at no other moment."""

from __future__ import annotations

import threading
from unittest import mock

from nova_gpu.core import exception
from nova_gpu.virt.lifecycle import starts
from tests.fixtures import kernel
from tests.functional import alone, base, cleaned, kvm

MINE = base.FIRST_SOCKET[0]
ITS_CARDS = set(base.FIRST_SOCKET)


class ReleaseTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))

    def assertCleaned(self, *cards: str) -> None:
        """These so far"""
        self.assertEqual(list(cards), self.cleaned.cards)

    def test_delete(self) -> None:
        self._delete_server(self.server)
        self.assertCleaned(f"host1 {MINE}")
        self.assertIn("[gpu]clean_command for GPU 0000:04:00.0: 10de:1091 lxc", self.log())
        self.assertInventory(used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_in_a_pid_namespace_of_its_own(self) -> None:
        """What its guest has left on the card is not seen there."""
        self.leaves = {"quarantine": "what has it open is not known", "reserved": "so"}
        kernel.contain(self.hosts["host1"])
        self._delete_server(self.server)
        said = f"GPU {MINE} is in quarantine: nova-compute cannot see whether a process of the"
        self.assertIn(said, self.log())
        self.assertInventory(reserved=1, used=0)

    def test_domain_that_somebody_removed(self) -> None:
        """Nobody says so; until the period has seen it the card is nobody's."""
        domain = self.guest(self.server)
        domain.destroy()
        domain.undefine()
        self.period()
        self.assertCleaned()
        self._delete_server(self.server)
        self.boot_refused(self.gpu_flavor(8))
        self.period()
        self.assertCleaned(f"host1 {MINE}")
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_claim_that_never_came_to_a_guest(self) -> None:
        """Its GPUs are as they were: nobody is to wait for their cleaning."""
        unfit = exception.GuestUnfit("it is not", "let it be")
        with mock.patch.object(starts.Starts, "_compare", side_effect=unfit):
            self.boot_refused(self.gpu_flavor(1))
        self.period()
        self.assertCleaned()


class SlowCommandTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(thread_pool_size=8, group="nova_sys_admin")
        self.commands = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.server = self.boot(self.gpu_flavor(4))

    def test_meanwhile(self) -> None:
        """Nobody gets a card that is being cleaned, and nobody else waits for it."""
        plain = self.boot(self.flavor())
        deletion = threading.Thread(target=self._delete_server, args=(self.server,))
        with self.commands.stopped():
            deletion.start()
            self._wait_for_assert(lambda: self.assertEqual(ITS_CARDS, self.commands.begun()))
            self._reboot_server(plain, hard=True)
            self.boot_refused(self.gpu_flavor(5))
            self.assertTrue(deletion.is_alive(), "else this shows nothing")
        deletion.join()
        self.assertGPUs(plain, [])
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)


class ResetTest(alone.Alone, kvm.KVMServersTestBase):
    """Each has two functions, and both are reset."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))
        self.resets()  # those of the start, when nothing was known of the cards

    def resets(self, host: str = "host1") -> list[str]:
        """The functions that were reset since it was asked last"""
        files = [path / "reset" for path in self.hosts[host].devices.iterdir()]
        found = sorted(file.parent.name for file in files if file.exists() and file.read_text())
        for file in files:
            if file.exists():
                file.write_text("")
        return found

    def test_does_not_come_back_from_its_reset(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "the card that does not come back")
        self.period()  # from here on the database counts it
        (self.hosts["host1"].devices / kvm.ALL[0] / "config").write_bytes(b"\xff" * 256)
        self._delete_server(self.server)
        self._wait_for_assert(lambda: self.assertInventory(total=4, reserved=1))
        self.assertIn(f"{kvm.ALL[0]} does not answer after its reset", self.log())
        self.assertGPUs(self.boot(self.gpu_flavor(3)), kvm.ALL[1:])
