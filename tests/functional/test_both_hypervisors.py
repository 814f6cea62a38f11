# SPDX-License-Identifier: Apache-2.0
"""A container host and a KVM host in one cloud."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fixtures
from nova.tests.functional.api import client

from tests.fixtures import libvirt
from tests.functional import base, kvm
from tests.functional.base import Server

# Of fermi-8: how many instances with four GPUs fit.
CONTAINERS = 2
FOUR = {"gpus": "= 4"}


class BothTest(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        lxc = fixtures.MonkeyPatch("nova.tests.fixtures.libvirt.Connection", libvirt.Connection)
        self.flags(virt_type="lxc", group="libvirt")
        with lxc:
            self.start_host("lxc", machine="fermi-8")
        self.flags(virt_type="kvm", group="libvirt")
        self.start_host("kvm")
        for host in self.hosts:
            self._keep_options_of(host)

    def _setup_hypervisor(self) -> None:
        super()._setup_hypervisor()
        self.useFixture(libvirt.ContainersFixture())
        self.flags(uid_maps=["0:1000000:65536"], gid_maps=["0:1000000:65536"], group="libvirt")

    def _keep_options_of(self, host: str) -> None:
        """The options are the process's: what a host is asked to do, it does with its own."""
        manager = self.computes[host].manager

        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                self.flags(virt_type=host, group="libvirt")
                with self.on(host):
                    return method(*args, **kwargs)

            return wrapper

        for name in ("build_and_run_instance", "terminate_instance", "update_available_resource"):
            setattr(manager, name, wrap(getattr(manager, name)))

    def host_of(self, server: Server) -> str:
        """After the instance was seen to have four GPUs there"""
        host = super().host_of(server)
        reader = kvm.KVMServersTestBase if host == "kvm" else base.GPUServersTestBase
        addresses = reader.rendered(self, server, host)
        self.assertEqual(self.recorded(server), addresses)
        self.assertEqual(({host: 4}, 4), (self.allocated(server), len(addresses)))
        return host

    def assertFull(self) -> None:
        self.assertInventory(total=8, used=8, host="lxc")
        self.assertInventory(total=4, used=4, host="kvm")

    def test_the_flavors_word_chooses(self) -> None:
        """Also where the other one has more room, and when its own is full; older words too"""
        guests = self.flavor(**FOUR, hypervisor="s== QEMU")
        containers = self.flavor(**FOUR, hypervisor="s== LXC")
        for words in ({"hypervisor": "KVM"}, {"hypervisor_type": "s== QEMU"}):
            server = self.boot(self.flavor(**FOUR, **words))
            self.assertEqual("kvm", self.host_of(server))
            self._delete_server(server)
        self.assertEqual("kvm", self.host_of(self.boot(guests)))
        self.assertIn("asked for, none free", self.boot_refused(guests))
        for _ in range(CONTAINERS):
            self.assertEqual("lxc", self.host_of(self.boot(containers)))
        self.assertIn("asked for, none free", self.boot_refused(containers))
        self.assertFull()

    def test_image_without_pci_express(self) -> None:
        """Is for containers alone, and no instance of it is resized to GPUs of a KVM host."""
        image, flavor = self.image(hw_machine_type="pc"), self.flavor(**FOUR)
        server = self.boot(self.flavor(), image_uuid=image, host="kvm")
        # A cast is a call here, so that what the scheduler raises reaches the API.
        wrong = self.flavor(**FOUR, hypervisor="KVM")
        error = self.assertRaises(client.OpenStackApiException, self._resize_server, server, wrong)
        self.assertIn("NoValidHost", str(error))
        self._wait_until_settled(server)
        # No host judges it: none has its guest gone before it refuses.
        self.assertEqual(
            [None], [migration["dest_compute"] for migration in self.api.get_migrations()]
        )
        self.assertIn("machine type is pc", self.log())
        for _ in range(CONTAINERS):
            self.assertEqual("lxc", self.host_of(self.boot(flavor, image_uuid=image)))
        self.boot_refused(flavor, image_uuid=image)
        self.assertInventory(total=4, used=0, host="kvm")
        fault = self.boot_refused(self.flavor(**FOUR, hypervisor="KVM"), image_uuid=image)
        self.assertIn("machine type is pc", fault)
        self.assertEqual("kvm", self.host_of(self.boot(flavor)))
