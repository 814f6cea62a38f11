# SPDX-License-Identifier: Apache-2.0
"""A card is cleaned whenever a guest gives it back, once and at no other moment."""

from __future__ import annotations

import threading

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu.core import exception
from nova_gpu.host.state import quarantine
from tests.fixtures import daemons, kernel
from tests.functional import alone, base, cleaned

MINE, NEXT = base.FIRST_SOCKET[:2]
ITS_CARDS = set(base.FIRST_SOCKET)


class CleaningTestBase(base.GPUServersTestBase):
    """An instance on one host, and one with a card of the same address on the other."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(daemons.Daemons())
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host("host1")
        self.server = self.boot(self.gpu_flavor(1))
        self.start_host("host2")
        self.stranger = self.boot(self.gpu_flavor(1), host="host2")

    def assertCleaned(self, *cards: str) -> None:
        self.assertEqual(list(cards), self.cleaned.cards)
        self.assertGPUs(self.stranger, [MINE], "host2")
        for host in self.hosts:
            self.assertEqual({}, quarantine.load(self.state(host) / "gpu-quarantine"))


class ReleaseTest(alone.Alone, CleaningTestBase):
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


class MovesTest(CleaningTestBase):
    def test_failed_build(self) -> None:
        """The guest runs when it fails; one that never started had nothing."""
        get_info = libvirt_driver.LibvirtDriver.get_info
        failed = []

        def fail_once(*args: object, **kwargs: object) -> object:
            if not failed:
                failed.append(True)
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, "no", error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR
                )
            return get_info(*args, **kwargs)

        with fixtures.MonkeyPatch("nova.virt.libvirt.driver.LibvirtDriver.get_info", fail_once):
            self.boot_refused(self.gpu_flavor(1), host="host1")
        self.assertCleaned(f"host1 {NEXT}")
        self.period("host1")
        self.assertCleaned(f"host1 {NEXT}")

    def test_confirm_at_the_source(self) -> None:
        self._resize_server(self.server, self.gpu_flavor(2))
        self.period("host1")
        self.period("host2")
        self.assertCleaned()
        self.confirm(self.server, source="host1")
        self.assertCleaned(f"host1 {MINE}")

    def test_revert_at_the_destination(self) -> None:
        self._resize_server(self.server, self.gpu_flavor(2))
        self._revert_resize(self.server)
        self.assertCleaned(f"host2 {NEXT}", f"host2 {base.FIRST_SOCKET[2]}")
        self.assertGPUs(self.server, [MINE], "host1")

    def test_evacuated_source_coming_back(self) -> None:
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self.assertCleaned()
        self.bring_back("host1")
        self.assertCleaned(f"host1 {MINE}")

    def test_offload(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.assertCleaned()
        self.api.post_server_action(self.server["id"], {"shelveOffload": None})
        self._wait_for_state_change(self.server, "SHELVED_OFFLOADED")
        self.assertCleaned(f"host1 {MINE}")
        self._unshelve_server(self.server)
        self.assertCleaned(f"host1 {MINE}")

    def test_reap(self) -> None:
        self.force_down("host1")
        self._delete_server(self.server)
        self.bring_back("host1")
        self.period("host1")
        self.assertCleaned()
        self.reap()
        self.assertCleaned(f"host1 {MINE}")


class SameHostTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(daemons.Daemons())
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


class NoReleaseTest(alone.Alone, CleaningTestBase):
    """The others are in test_cleaning_moments."""

    def test_claim_that_never_came_to_a_guest(self) -> None:
        """Its GPUs are as they were: nobody is to wait for their cleaning."""
        with fixtures.MonkeyPatch("nova_gpu.virt.lifecycle.starts.Starts._compare", _refuse):
            self.boot_refused(self.gpu_flavor(1), host="host1")
        self.period("host1")
        self.assertCleaned()


class SlowCommandTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(daemons.Daemons())
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


def _refuse(*args: object, **kwargs: object) -> None:
    raise exception.GuestUnfit("it is not", "let it be")
