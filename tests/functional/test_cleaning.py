# SPDX-License-Identifier: Apache-2.0
"""A card is cleaned whenever a guest gives it back, once and at no other moment."""

from __future__ import annotations

import threading
from unittest import mock

from nova_gpu.core import exception
from nova_gpu.host.state import quarantine
from nova_gpu.virt.lifecycle import starts
from tests.fixtures import kernel
from tests.functional import alone, base, cleaned

MINE, NEXT = base.FIRST_SOCKET[:2]
ITS_CARDS = set(base.FIRST_SOCKET)


class ReleaseTest(cleaned.Neighbours, alone.Alone, base.GPUServersTestBase):
    def test_delete(self) -> None:
        self._delete_server(self.server)
        self.assertCleaned(f"host1 {MINE}")
        self.assertIn("[gpu]clean_command for GPU 0000:04:00.0: 10de:1091 lxc", self.log())
        self.assertInventory(used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(8), host="host1"), base.ALL)

    def test_in_a_pid_namespace_of_its_own(self) -> None:
        """What its guest has left on the card is not seen there."""
        self.leaves = {"quarantine": "what has it open is not known", "reserved": "so"}
        kernel.contain(self.hosts["host1"])
        self._delete_server(self.server)
        said = f"GPU {MINE} is in quarantine: nova-compute cannot see whether a process of the"
        self.assertIn(said, self.log())
        self.assertInventory(reserved=1, used=0)

    def test_delete_of_a_stopped_one(self) -> None:
        self._stop_server(self.server)
        self.assertCleaned()
        self._delete_server(self.server)
        self.assertCleaned(f"host1 {MINE}")

    def test_domain_that_somebody_removed(self) -> None:
        """Nobody says so; until the period has seen it the card is nobody's."""
        domain = self.guest(self.server)
        domain.destroy()
        domain.undefine()
        self.period("host1")
        self.assertCleaned()
        self._delete_server(self.server)
        self.boot_refused(self.gpu_flavor(8), host="host1")
        self.period("host1")
        self.assertCleaned(f"host1 {MINE}")
        self.assertGPUs(self.boot(self.gpu_flavor(8), host="host1"), base.ALL, "host1")


class MovesTest(cleaned.Neighbours, base.GPUServersTestBase):
    def test_confirm_at_the_source(self) -> None:
        self._resize_server(self.server, self.gpu_flavor(2))
        self.periods()
        self.assertCleaned()
        self.confirm(self.server, source="host1")
        self.assertCleaned(f"host1 {MINE}")

    def test_revert_at_the_destination(self) -> None:
        self._resize_server(self.server, self.gpu_flavor(2))
        self._revert_resize(self.server)
        self.assertCleaned(f"host2 {NEXT}", f"host2 {base.FIRST_SOCKET[2]}")
        self.assertGPUs(self.server, [MINE], "host1")


class SameHostTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))
        self._resize_server(self.server, self.flavor(gpus="= 1", note="another"))
        self.period()
        self.assertEqual([], self.cleaned.cards)

    def test_confirm(self) -> None:
        self.confirm(self.server, source="host1")
        self.assertEqual([f"host1 {MINE}"], self.cleaned.cards)
        self.assertGPUs(self.server, [NEXT])

    def test_confirm_after_a_restart(self) -> None:
        """That a guest had the old card is told by the database alone then."""
        self.restart_host("host1")
        self.confirm(self.server, source="host1")
        self.assertEqual([f"host1 {MINE}"], self.cleaned.cards)

    def test_revert(self) -> None:
        self._revert_resize(self.server)
        self.assertEqual([f"host1 {NEXT}"], self.cleaned.cards)
        self.assertGPUs(self.server, [MINE])


class NoReleaseTest(cleaned.Neighbours, alone.Alone, base.GPUServersTestBase):
    """The others are in test_cleaning_moments."""

    def test_claim_that_never_came_to_a_guest(self) -> None:
        """Its GPUs are as they were: nobody is to wait for their cleaning."""
        unfit = exception.GuestUnfit("it is not", "let it be")
        with mock.patch.object(starts.Starts, "_compare", side_effect=unfit):
            self.boot_refused(self.gpu_flavor(1), host="host1")
        self.period("host1")
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

    def test_one_of_four_does_not_keep_the_others_from_theirs(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "one card is not clean")
        self.commands.stain(MINE)
        deletion = threading.Thread(target=self._delete_server, args=(self.server,))
        with self.commands.stopped():
            deletion.start()
            # All have begun before one of them ends.
            self._wait_for_assert(lambda: self.assertEqual(ITS_CARDS, self.commands.begun()))
        deletion.join()
        self.assertEqual(4, len(self.commands.cards))
        self.assertEqual([MINE], list(map(str, quarantine.load(self.state() / "gpu-quarantine"))))
        self.period()
        self.assertInventory(reserved=1)
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
