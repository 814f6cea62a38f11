# SPDX-License-Identifier: Apache-2.0
"""Cards that Nova's own PCI passthrough has, and that instances get by ``[pci]alias``."""

from __future__ import annotations

import json
from collections.abc import Iterable

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import kvm
from tests.functional.base import Server

A2 = {"vendor_id": "10de", "product_id": "25b6"}
ALL_A2 = json.dumps(A2)


def devices(addresses: Iterable[str] = kvm.ALL) -> fakelibvirt.HostPCIDevicesInfo:
    """The generated cards as libvirt lists them, for Nova's PCI tracker"""
    pci_devices = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
    for number, address in enumerate(addresses):
        pci_devices.add_device(
            dev_type="PCI",
            bus=int(address[5:7], 16),
            slot=0,
            function=0,
            iommu_group=number,
            numa_node=int(address in kvm.SECOND_SOCKET),
            vend_id=A2["vendor_id"],
            vend_name="NVIDIA Corporation",
            prod_id=A2["product_id"],
            prod_name="A2",
            driver_name="vfio-pci",
        )
    return pci_devices


def spec_of(bus: str, function: str = "0") -> str:
    """Of one function, by a pattern: Nova looks a plain address up in the machine's own /sys."""
    place = {"domain": ".*", "bus": bus, "slot": "00", "function": function}
    return json.dumps({"address": place})


class AliasesTestBase(kvm.KVMServersTestBase):
    ADDITIONAL_FILTERS = ("GPUFilter", "PciPassthroughFilter")

    def setUp(self) -> None:
        super().setUp()
        self.flags(alias=[json.dumps({**A2, "name": "a2"})], group="pci")

    def device_spec(self, *specs: str) -> None:
        self.flags(device_spec=list(specs), group="pci")

    def boot_by_alias(self) -> Server:
        return self.boot(self.flavor(**{"pci_passthrough:alias": "a2:1"}))
