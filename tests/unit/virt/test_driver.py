# SPDX-License-Identifier: Apache-2.0
"""The driver's overrides, and what they stand on."""

from __future__ import annotations

import inspect
from typing import Any
from unittest import mock

import fixtures
import libvirt
from nova import exception as nova_exception
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils
from oslotest import base

from nova_gpu.core import names
from nova_gpu.virt import signatures
from nova_gpu.virt.delivery import container_domain
from nova_gpu.virt.driver import GPULibvirtDriver
from nova_gpu.virt.libvirt_version import LibvirtVersion
from nova_gpu.virt.periodic import contained


class Parent:
    def spawn(self, context: Any, power_on: bool = True) -> Any: ...


class DriverTest(base.BaseTestCase):
    def test_id_maps_that_privsep_can_send(self) -> None:
        """It sends tuples, and no objects of Nova's configuration of a guest."""
        # Nova tells uid maps from gid maps by their class.
        for kind in (vconfig.LibvirtConfigGuestUIDMap, vconfig.LibvirtConfigGuestGIDMap):
            (id_map,) = GPULibvirtDriver._create_idmaps(kind, ["0:1000:65536"])
            self.assertIsInstance(id_map, kind)
            self.assertIsInstance(id_map, tuple)
            self.assertEqual((0, 1000, 65536), tuple(id_map))
            (plain,) = libvirt_driver.LibvirtDriver._create_idmaps(kind, ["0:1000:65536"])
            self.assertEqual(plain.to_xml(), id_map.to_xml())

    def test_statistics_where_novas_driver_has_none(self) -> None:
        """Nova 31.0, which is not among the releases that the tests run with"""
        driver = GPULibvirtDriver.__new__(GPULibvirtDriver)
        driver._gpus = mock.Mock()
        driver._gpus.publication.stats.return_value = "{}"
        with mock.patch.object(
            libvirt_driver.LibvirtDriver, "get_available_resource", return_value={}
        ):
            self.assertEqual({"stats": {names.STATS: "{}"}}, driver.get_available_resource("host1"))

    def test_signatures_of_overrides(self) -> None:
        """A method that a release of Nova has renamed fails where it is imported."""

        @signatures.of_parent
        class Child(Parent):
            def spawn(self, context: Any, *args: Any, **kwargs: Any) -> Any: ...

        self.assertEqual(inspect.signature(Parent.spawn), inspect.signature(Child.spawn))
        with self.assertRaisesRegex(AttributeError, "spawn_guest"):

            @signatures.of_parent
            class Lost(Parent):
                def spawn_guest(self) -> None: ...

    def test_a_failing_period_is_logged_whole_and_goes_no_further(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.periodic"))
        with contained("This host's GPUs were not read"):
            raise ZeroDivisionError("by a bug")
        self.assertIn("This host's GPUs were not read. This is a bug, please report it", log.output)
        self.assertIn("ZeroDivisionError: by a bug", log.output)
        with self.assertRaises(SystemExit), contained("Nothing"):
            raise SystemExit(1)

    def test_libvirts_last_version_counts_while_it_is_away(self) -> None:
        restarted = libvirt.libvirtError("it is being restarted")
        answers = [nova_exception.HypervisorUnavailable(), 10000000, restarted, 10001000]
        version = LibvirtVersion(mock.Mock(side_effect=answers))
        self.assertEqual([None, 10000000, 10000000, 10001000], [version() for _ in answers])

    def test_owners_of_a_containers_files_by_release(self) -> None:
        novas, release = libvirt_utils.chown_for_id_maps, "nova_gpu.virt.signatures.nova_release"
        for number, used in ((33, container_domain.change_owners), (34, novas)):
            self.useFixture(fixtures.MockPatchObject(libvirt_utils, "chown_for_id_maps", novas))
            with fixtures.MockPatch(release, return_value=number):
                container_domain.replace_change_of_owners()
            self.assertIs(used, libvirt_utils.chown_for_id_maps)
        shift = self.useFixture(fixtures.MockPatch("nova_gpu.privsep.root_disk.shift")).mock
        uuid = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
        container_domain.change_owners(f"/var/lib/nova/instances/{uuid}/rootfs", [])
        shift.assert_called_once_with(uuid)
