# SPDX-License-Identifier: Apache-2.0
"""GPUs beside the network functions that Nova's own passthrough gives to their instances."""

from __future__ import annotations

import json

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import kvm
from tests.functional.base import Server

MACHINE = "beside-6"
# By the bus of the network card beside them
BESIDE = {"0x06": ["0000:04:00.0", "0000:05:00.0"], "0x0c": ["0000:0a:00.0", "0000:0b:00.0"]}
APART = ["0000:84:00.0", "0000:85:00.0"]
VIRTUAL_FUNCTION = {"vendor_id": "8086", "product_id": "1515"}


def functions() -> fakelibvirt.HostPCIDevicesInfo:
    """The machine's network cards and disk as libvirt lists them, for Nova's PCI tracker"""
    pci_devices = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
    group = 40
    for bus in (0x06, 0x0C):
        of_all = {"bus": bus, "slot": 0, "numa_node": 0, "vf_ratio": 2}
        pci_devices.add_device("PF", function=0, iommu_group=group, **of_all)
        for number in (1, 2):
            pci_devices.add_device(
                "VF", function=number, iommu_group=group + number, parent=(bus, 0, 0), **of_all
            )
        group += 3
    return pci_devices


class BesideTestBase(kvm.KVMServersTestBase):
    ADDITIONAL_FILTERS = ("GPUFilter", "PciPassthroughFilter")

    def setUp(self) -> None:
        super().setUp()
        alias = {**VIRTUAL_FUNCTION, "name": "nic", "device_type": "type-VF"}
        self.flags(alias=[json.dumps(alias)], group="pci")
        self.flags(device_spec=[json.dumps(VIRTUAL_FUNCTION)], group="pci")

    def start_host(self, name: str = "host1", **kwargs: object) -> None:  # type: ignore[override]
        super().start_host(name, MACHINE, pci_info=functions(), **kwargs)

    def near(self, gpus: int = 1, policy: str = "required", functions: int = 1) -> str:
        words = {"gpus": f"= {gpus}", "gpu:near": "nic", "gpu:near_policy": policy}
        return self.flavor(**words, **{"pci_passthrough:alias": f"nic:{functions}"})

    def take(self, host: str = "host1") -> tuple[Server, Server]:
        """Others have the cards on the second socket, and those beside the first network card."""
        apart, taken = (self.boot(self.gpu_flavor(2), host=host) for _ in range(2))
        self.assertGPUs(apart, APART, host)
        self.assertGPUs(taken, BESIDE["0x06"], host)
        return apart, taken

    def bus(self, server: Server, host: str = "host1") -> str:
        """Of the network card of which the guest has a function"""
        (bus,) = self.by_alias(server, host)
        return bus

    def assertBeside(self, server: Server, host: str = "host1") -> None:
        gpus = self.rendered(server, host)
        self.assertLessEqual(set(gpus), set(BESIDE[self.bus(server, host)]))


class BesideTest(BesideTestBase):
    def test_as_long_as_there_are_both(self) -> None:
        """Nova would draw from the first card as long as it has any."""
        self.start_host()
        apart, taken = self.take()
        pair = self.boot(self.near(gpus=2))
        self.assertGPUs(pair, BESIDE["0x0c"])
        self.assertBeside(pair)

        self._delete_server(apart)
        self.period()
        # None is left on that node: who insists is refused, who does not gets what there is.
        fault = self.boot_refused(self.near())
        self.assertIn("Exceeded maximum number of retries", fault)
        reason = "requires gpu:near nic, but 1 of its 1 GPUs are on another NUMA node"
        self.assertIn(reason, self.log())
        self.assertGPUs(self.boot(self.near(policy="preferred")), APART[:1])

        # One function of the first card is left, and its GPUs are free again.
        self._delete_server(taken)
        self.period()
        one = self.boot(self.near())
        self.assertEqual("0x06", self.bus(one))
        self.assertGPUs(one, BESIDE["0x06"][:1])


class InPlacementTest(BesideTestBase):
    """Placement counts the functions, so that the scheduler says which."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(report_in_placement=True, group="pci")
        self.flags(pci_in_placement=True, group="filter_scheduler")
        self.start_host()

    def test_beside_what_the_scheduler_chose(self) -> None:
        pair = self.boot(self.near(gpus=2))
        self.assertBeside(pair)
        address = f"0000:{self.bus(pair)[2:]}:00.0"
        # Nova's libvirt of the tests lists addresses in capitals.
        providers = {p["name"].lower(): p["uuid"] for p in self._get_all_providers()}
        counted = providers[f"host1_{address}"]
        self.assertEqual({"CUSTOM_PCI_8086_1515": 1}, self._get_provider_usages(counted))

        # It chooses without a look at GPUs, so that the function may be the same card's: then those
        # of its NUMA node are what is left.
        other = self.boot(self.near(gpus=2))
        near = {gpu for gpus in BESIDE.values() for gpu in gpus}
        self.assertEqual(near, {*self.rendered(pair), *self.rendered(other)})
        self.boot_refused(self.near())
        self.assertIn("1 of its 1 GPUs are on another NUMA node", self.log())
        preferring = self.boot(self.near(policy="preferred"))
        self.assertGPUs(preferring, APART[:1])
