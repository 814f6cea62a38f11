# SPDX-License-Identifier: Apache-2.0
"""Moves of an instance.

Two hosts whose GPUs have the same addresses; at each another instance has the first one.
"""

from __future__ import annotations

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import kvm


class KVMMovesTest(kvm.KVMServersTestBase):
    HOSTS = ("host1", "host2")

    def setUp(self) -> None:
        super().setUp()
        self.strangers = {host: self.boot(self.gpu_flavor(1), host=host) for host in self.hosts}
        self.first = self.recorded(self.strangers["host1"])

    def assertUsed(self, host1: int, host2: int) -> None:
        """By the instance; the others have what they had."""
        for host, used in {"host1": host1 + 1, "host2": host2 + 1}.items():
            self.assertGPUs(self.strangers[host], self.first, host)
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

    def _boot(self, **extra_specs: str) -> None:
        self.server = self.boot(self.flavor(**extra_specs), host="host1")

    def _resize(self, **extra_specs: str) -> None:
        self._resize_server(self.server, self.flavor(**extra_specs))

    def test_resize_up_and_down(self) -> None:
        """From none to two, to one, and to none, each confirmed, and the ends reverted as well"""
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
        self._resize(gpus="= 1")
        self.assertUsed(1, 2)
        self.confirm(self.server, source="host2")
        self.assertHas(1, "host1")
        self.assertUsed(1, 0)
        before = self.recorded(self.server)
        self._resize()
        self.assertUsed(1, 0)
        self._revert_resize(self.server)
        self.assertHas(1, "host1")
        self.assertEqual(before, self.recorded(self.server))
        self._resize()
        self.confirm(self.server, source="host1")
        self.assertHas(0, "host2")
        self.assertUsed(0, 0)

    def test_cold_migration(self) -> None:
        self._boot(gpus="= 1")
        mine = self.recorded(self.server)
        self._migrate_server(self.server)
        self.restart_host("host1")
        self.assertUsed(1, 1)
        # Until it is confirmed the old GPU is the instance's as well.
        self.boot_refused(self.gpu_flavor(self.TOTAL - 1), host="host1")
        self._revert_resize(self.server)
        self.assertHas(1, "host1")
        self.assertEqual(mine, self.recorded(self.server))
        self.assertUsed(1, 0)
        self._migrate_server(self.server)
        self.confirm(self.server, source="host1")
        self.assertHas(1, "host2")
        self.assertUsed(0, 1)

    def test_evacuation(self) -> None:
        self._boot(gpus="= 1")
        before = self.recorded(self.server)
        # Its guest goes on while its host is away, and ends when that is back.
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self._start_server(self.server)
        self.assertEqual(before, self.rendered(self.server, "host1"))
        self.bring_back("host1")
        self.assertHas(1, "host2")
        self.assertUsed(0, 1)
