# SPDX-License-Identifier: Apache-2.0
"""A card is cleaned whenever a guest gives it back, once and at no other moment."""

from __future__ import annotations

import threading
from unittest import mock

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu.core import exception
from nova_gpu.virt.lifecycle import starts
from tests.fixtures import kernel, libvirt
from tests.functional import alone, base, cleaned, kvm

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

    def test_claim_that_never_came_to_a_guest(self) -> None:
        """Its GPUs are as they were: nobody is to wait for their cleaning."""
        unfit = exception.GuestUnfit("it is not", "let it be")
        with mock.patch.object(starts.Starts, "_compare", side_effect=unfit):
            self.boot_refused(self.gpu_flavor(1), host="host1")
        self.period("host1")
        self.assertCleaned()


class MomentsTest(cleaned.Neighbours, kvm.KVMServersTestBase):
    """All moments but a deletion, with a neighbour that has a card of the same address."""

    MINE, NEXT = kvm.ALL[:2]

    def test_no_release(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._reboot_server(self.server, hard=True)
        self._reboot_server(self.server)
        self.assertCleaned()
        self.perform(self.server, "pause", "PAUSED")
        self.perform(self.server, "unpause", "ACTIVE")
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period("host1")
        self._start_server(self.server)
        self.assertCleaned()
        self._rebuild_server(self.server, base.IMAGE)
        self.assertCleaned()
        self._shelve_server(self.server, expected_state="SHELVED")
        self.period("host1")
        self._unshelve_server(self.server)
        self.assertCleaned()
        self.rescue(self.server)
        self.perform(self.server, "unrescue", "ACTIVE")
        self.assertCleaned()
        self._delete_server(self.boot(self.flavor(), host="host1"))
        self.assertCleaned()
        self.assertGPUs(self.server, [self.MINE])

    def test_releases(self) -> None:
        self._fail_a_build()
        self.assertCleaned(f"host1 {self.NEXT}")
        self.period("host1")
        self.assertCleaned(f"host1 {self.NEXT}")
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.assertCleaned(f"host1 {self.NEXT}")
        self.perform(self.server, "shelveOffload", "SHELVED_OFFLOADED")
        both = f"host1 {self.NEXT}", f"host1 {self.MINE}"
        self.assertCleaned(*both)
        self._unshelve_server(self.server)
        self.assertCleaned(*both)

    def test_releases_of_a_resize(self) -> None:
        """Reverted at the destination, and confirmed at the source"""
        self._resize_server(self.server, self.gpu_flavor(2))
        self._revert_resize(self.server)
        there = [f"host2 {card}" for card in kvm.SECOND_SOCKET]
        self.assertCleaned(*there)
        self.assertGPUs(self.server, [self.MINE], "host1")
        self._resize_server(self.server, self.gpu_flavor(2))
        self.periods()
        self.assertCleaned(*there)
        self.confirm(self.server, source="host1")
        self.assertCleaned(*there, f"host1 {self.MINE}")

    def _fail_a_build(self) -> None:
        """When its guest runs already; one that never started had nothing."""
        get_info = libvirt_driver.LibvirtDriver.get_info
        failed = []

        def fail_once(*args: object, **kwargs: object) -> object:
            if failed:
                return get_info(*args, **kwargs)
            failed.append(True)
            raise libvirt.error("no", fakelibvirt.VIR_ERR_INTERNAL_ERROR)

        with fixtures.MonkeyPatch("nova.virt.libvirt.driver.LibvirtDriver.get_info", fail_once):
            self.boot_refused(self.gpu_flavor(1), host="host1")

    def test_releases_of_a_host_that_comes_back(self) -> None:
        reaped = self.boot(self.gpu_flavor(1), host="host1")
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self._delete_server(reaped)
        self.assertCleaned()
        self.bring_back("host1")
        self.assertCleaned(f"host1 {self.MINE}")
        self.period("host1")
        self.assertCleaned(f"host1 {self.MINE}")
        self.reap()
        self.assertCleaned(f"host1 {self.MINE}", f"host1 {self.NEXT}")


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

    def test_confirm_after_a_restart(self) -> None:
        """That a guest had the old card is told by the database alone then."""
        self.restart_host("host1")
        self.confirm(self.server, source="host1")
        self.assertEqual([f"host1 {MINE}"], self.cleaned.cards)

    def test_revert(self) -> None:
        self._revert_resize(self.server)
        self.assertEqual([f"host1 {NEXT}"], self.cleaned.cards)
        self.assertGPUs(self.server, [MINE])


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

    def test_delete(self) -> None:
        self._delete_server(self.server)
        self.assertEqual(["0000:3b:00.0", "0000:3b:00.1"], self.resets())
        self.assertGPUs(self.boot(self.gpu_flavor(4)), kvm.ALL)

    def test_does_not_come_back_from_its_reset(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "the card that does not come back")
        self.period()  # from here on the database counts it
        (self.hosts["host1"].devices / kvm.ALL[0] / "config").write_bytes(b"\xff" * 256)
        self._delete_server(self.server)
        self._wait_for_assert(lambda: self.assertInventory(total=4, reserved=1))
        self.assertIn(f"{kvm.ALL[0]} does not answer after its reset", self.log())
        self.assertGPUs(self.boot(self.gpu_flavor(3)), kvm.ALL[1:])
