# SPDX-License-Identifier: Apache-2.0
"""Moves of an instance, the same for containers and for KVM guests.

Two hosts whose GPUs have the same addresses; at each another instance has the first one.
"""

from __future__ import annotations

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import base, kvm


class Hosts:
    HOSTS = ("host1", "host2")

    def setUp(self) -> None:
        super().setUp()
        self.strangers = {host: self.boot(self.gpu_flavor(1), host=host) for host in self.hosts}
        self.first = self.recorded(self.strangers["host1"])

    def assertOthersUntouched(self) -> None:
        for host, server in self.strangers.items():
            self.assertGPUs(server, self.first, host)

    def assertUsed(self, host1: int, host2: int) -> None:
        self.assertOthersUntouched()
        for host, used in {"host1": host1 + 1, "host2": host2 + 1}.items():
            self.period(host)
            self.assertInventory(used=used, host=host)

    def assertHas(self, gpus: int, host: str) -> None:
        """That many, everywhere the same ones, and its guest is at no other host."""
        got = self.recorded(self.server)
        self.assertEqual(gpus, len(got))
        self.assertNotIn(self.first[0], got)
        self.assertGPUs(self.server, got, host)
        (other,) = {"host1", "host2"} - {host}
        self.assertRaises(fakelibvirt.libvirtError, self.domain, self.server, other)


class Moves(Hosts):
    def _boot(self, **extra_specs: str) -> None:
        self.server = self.boot(self.flavor(**extra_specs), host="host1")

    def _resize(self, **extra_specs: str) -> None:
        self._resize_server(self.server, self.flavor(**extra_specs))

    def test_resize_up_and_down(self) -> None:
        self._boot(gpus="= 1")
        self._resize(gpus="= 2")
        self.assertUsed(1, 2)
        self.confirm(self.server, source="host1")
        self.assertHas(2, "host2")
        self.assertUsed(0, 2)
        self._resize(gpus="= 1")
        self.assertUsed(1, 2)
        self.confirm(self.server, source="host2")
        self.assertHas(1, "host1")
        self.assertUsed(1, 0)

    def test_resize_to_none(self) -> None:
        self._boot(gpus="= 2")
        before = self.recorded(self.server)
        self._resize()
        self.assertUsed(2, 0)
        self._revert_resize(self.server)
        self.assertHas(2, "host1")
        self.assertEqual(before, self.recorded(self.server))
        self.assertUsed(2, 0)
        self._resize()
        self.confirm(self.server, source="host1")
        self.assertHas(0, "host2")
        self.assertUsed(0, 0)

    def test_resize_from_none(self) -> None:
        self._boot()
        self._resize(gpus="= 2")
        self.assertUsed(0, 2)
        self._revert_resize(self.server)
        self.assertHas(0, "host1")
        self.assertUsed(0, 0)
        self._resize(gpus="= 2")
        self.confirm(self.server, source="host1")
        self.assertHas(2, "host2")
        self.assertUsed(0, 2)

    def test_cold_migration(self) -> None:
        self._boot(gpus="= 1")
        self._migrate_server(self.server)
        self.assertUsed(1, 1)
        self._revert_resize(self.server)
        self.assertHas(1, "host1")
        self.assertUsed(1, 0)
        self._migrate_server(self.server)
        self.confirm(self.server, source="host1")
        self.assertHas(1, "host2")
        self.assertUsed(0, 1)

    def test_evacuation(self) -> None:
        self._boot(gpus="= 1")
        # Its guest went on while its host was away, and ends when that is back.
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self._start_server(self.server)
        self.bring_back("host1")
        self.assertHas(1, "host2")
        self.assertUsed(0, 1)

    def test_unshelved_elsewhere(self) -> None:
        self.flags(shelved_offload_time=0)
        self._boot(gpus="= 2")
        self._shelve_server(self.server)
        self.assertUsed(0, 0)
        filler = self.boot(self.gpu_flavor(self.TOTAL - 2), host="host1")
        self._unshelve_server(self.server)
        self.assertHas(2, "host2")
        self._delete_server(filler)
        self.assertUsed(0, 2)


class SameHost:
    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_host()
        self.server = self.boot(self.gpu_flavor(1))
        self.before = self.recorded(self.server)
        self._resize_server(self.server, self.gpu_flavor(2))

    def test_old_and_new_are_both_claimed(self) -> None:
        """Until it is confirmed or reverted"""
        after = self.recorded(self.server)
        self.assertEqual(after, self.rendered(self.server))
        self.assertEqual(3, len({*self.before, *after}))
        self.period()
        self.assertInventory(used=3)
        self.boot_refused(self.gpu_flavor(self.TOTAL - 2))
        self._revert_resize(self.server)
        self.assertGPUs(self.server, self.before)
        self.period()
        self.assertInventory(used=1)
        self._resize_server(self.server, self.gpu_flavor(2))
        after = self.recorded(self.server)
        self.confirm(self.server, source="host1")
        self.assertGPUs(self.server, after)
        self.period()
        self.assertInventory(used=2)
        rest = self.boot(self.gpu_flavor(self.TOTAL - 2))
        self.assertGPUs(rest, self.recorded(rest))


class LXCMovesTest(Moves, base.GPUServersTestBase):
    pass


class KVMMovesTest(Moves, kvm.KVMServersTestBase):
    pass


class LXCSameHostTest(SameHost, base.GPUServersTestBase):
    pass


class KVMSameHostTest(SameHost, kvm.KVMServersTestBase):
    pass
