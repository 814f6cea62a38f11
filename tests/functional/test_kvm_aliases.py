# SPDX-License-Identifier: Apache-2.0
"""Cards that Nova's own PCI passthrough has, on a host in use that moves from it to this driver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from nova.tests.fixtures import libvirt as fakelibvirt

from nova_gpu.core import model
from tests.functional import base, kvm
from tests.functional.base import Server

CARD = kvm.ALL[0]
A2 = {"vendor_id": "10de", "product_id": "25b6"}
ALL_A2 = json.dumps(A2)


def devices(addresses: Iterable[str] = kvm.ALL) -> fakelibvirt.HostPCIDevicesInfo:
    """The generated cards as libvirt lists them, for Nova's PCI tracker"""
    found = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
    for number, address in enumerate(addresses):
        found.add_device(
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
    return found


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


class AliasesTest(AliasesTestBase):
    def test_both_owners_are_named_and_the_service_starts(self) -> None:
        self.device_spec(spec_of("3b"))
        self.start_host(pci_info=devices())
        self.assertInventory(total=3)
        for part in (f"GPU {CARD}", "is not offered", "[pci]device_spec", "compute_driver", CARD):
            self.assertIn(part, self.log())
        mine, theirs = self.boot(self.gpu_flavor(3)), self.boot_by_alias()
        self.assertGPUs(mine, kvm.ALL[1:])
        self.assertEqual(["0x3b"], self.by_alias(theirs))
        self.restart_host("host1")
        self.assertEqual(["0x3b"], self.by_alias(theirs))
        self.assertInventory(total=3, used=3)

    def test_spec_of_a_companion_counts_as_well(self) -> None:
        self.device_spec(spec_of("3b", function="1"))
        self.start_host()
        self.assertInventory(total=3)

    def test_spec_that_is_added_while_the_card_is_offered(self) -> None:
        self.start_host(pci_info=devices())
        self.assertInventory(total=4)
        server = self.boot(self.gpu_flavor(1))
        self.device_spec(spec_of("5e"))
        self.restart_host("host1")
        self.assertGPUs(server, [CARD])
        self.assertInventory(total=3, used=1)

    def test_moving_a_host_in_use_from_aliases(self) -> None:
        """As the documentation has it, step by step."""
        self.device_spec(ALL_A2)
        self.start_host("host1", pci_info=devices())
        first, second = self.boot_by_alias(), self.boot_by_alias()
        had = {server["id"]: self.by_alias(server) for server in (first, second)}
        self.assertEqual({}, self.groups())

        # The specification goes: what is free is offered, what an instance has is not.
        self.device_spec()
        self.restart_host("host1")
        self.period()
        self.assertInventory(total=4, reserved=2)
        self.boot_refused(self.gpu_flavor(3))
        new = self.boot(self.gpu_flavor(2))
        self.assertEqual(2, len(self.rendered(new)))
        for server in (first, second):
            self.assertEqual(had[server["id"]], self.by_alias(server))

        # They keep theirs through whatever starts them anew, and nobody is offered them meanwhile.
        offered: list[int] = []
        driver = self.computes["host1"].driver
        render = driver._get_guest_xml

        def spy(*args: Any, **kwargs: Any) -> Any:
            (uuid,) = self.groups().values()
            cards = [model.PciAddress.parse(each) for each in kvm.ALL]
            offered.append(len(driver._gpus._published.usable(uuid, cards, set())))
            return render(*args, **kwargs)

        driver._get_guest_xml = spy
        self._stop_server(first)
        self._start_server(first)
        self._reboot_server(second, hard=True)
        self._rebuild_server(first, base.IMAGE)
        self.assertEqual([0, 0, 0], offered)
        self.period()
        self.assertInventory(total=4, reserved=2, used=2)
        for server in (first, second):
            self.assertEqual(had[server["id"]], self.by_alias(server))

        # One is resized to a flavor with GPUs, the other is deleted: their cards are offered.
        self.start_host("host2")
        self._resize_server(first, self.gpu_flavor(1))
        self.confirm(first, source="host1")
        self.assertGPUs(first, [CARD], "host2")
        self.assertEqual([], self.by_alias(first, "host2"))
        self._delete_server(second)
        self.period()
        self.assertInventory(total=4, reserved=0, used=2)
        self.assertEqual(2, len(self.rendered(self.boot(self.gpu_flavor(2), host="host1"))))


class ResizedAliasesTest(AliasesTestBase):
    """An instance with a card by an alias is resized on the same host to one of nova-gpu's."""

    # Called instead of cast, the destination would take the source's error for its own.
    CAST_AS_CALL = False

    def test_its_card_is_given_to_no_other_before_it_is_confirmed(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.device_spec(spec_of("3b"), spec_of("5e"))
        self.start_host(pci_info=devices())
        booted = self.boot_by_alias(), self.boot_by_alias()
        servers = {self.by_alias(server)[0]: server for server in booted}
        kept, server = servers["0x5e"], servers["0x3b"]
        self._resize_server(server, self.gpu_flavor(1))
        self.period()
        self.assertInventory(total=2, used=1)
        self.boot_refused(self.gpu_flavor(2))
        self._revert_resize(server)
        self.assertEqual(["0x3b"], self.by_alias(server))
        self.period()
        self.assertInventory(total=2)

        # Without the specification the card would be offered while no domain has it.
        self.device_spec(spec_of("5e"))
        self.restart_host("host1")
        self.period()
        self.assertInventory(total=3, reserved=1)
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": self.gpu_flavor(1)}})
        self._wait_for_assert(lambda: self.assertIn("resize it to another host, or", self.log()))
        self._wait_until_settled(server)
        self._wait_for_assert(lambda: self.assertEqual({}, self.allocated(server)))
        self.period()
        self.assertInventory(total=3, reserved=1)
        self.assertEqual(["0x3b"], self.by_alias(server))
        self._resize_server(kept, self.gpu_flavor(1))
        self.confirm(kept, source="host1")
        self.assertEqual([], self.by_alias(kept))
        self.start_host("host2")
        self.flags(allow_resize_to_same_host=False)
        self._resize_server(server, self.gpu_flavor(1))
        self.confirm(server, source="host1")
        self.assertEqual(1, len(self.rendered(server, "host2")))


class ReportedAliasesTest(AliasesTestBase):
    """The same where Nova has the devices of its aliases in Placement, each as a provider."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(report_in_placement=True, group="pci")
        self.flags(pci_in_placement=True, group="filter_scheduler")

    def reported(self) -> list[str]:
        """The cards that Nova's own passthrough has in Placement"""
        url = f"/resource_providers?in_tree={self.compute_rp_uuids['host1']}"
        providers = self.placement.get(url, version="1.14").body["resource_providers"]
        names = (each["name"].removeprefix("host1_").lower() for each in providers)
        return sorted(name for name in names if name in kvm.ALL)

    def test_each_has_its_own_providers(self) -> None:
        self.device_spec(spec_of("3b"))
        self.start_host("host1", pci_info=devices())
        self.assertEqual([CARD], self.reported())
        self.assertInventory(total=3)
        mine, theirs = self.boot(self.gpu_flavor(3)), self.boot_by_alias()
        self.period()
        self.assertGPUs(mine, kvm.ALL[1:])
        self.assertEqual(["0x3b"], self.by_alias(theirs))

    def test_moving_a_host_in_use_from_aliases(self) -> None:
        """Its cards are freed first, as the documentation has it."""
        self.device_spec(ALL_A2)
        self.start_host("host1", pci_info=devices())
        server = self.boot_by_alias()
        had = self.by_alias(server)
        self.restart_host("host1")
        self._stop_server(server)
        self._start_server(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(had, self.by_alias(server))
        self.assertEqual(sorted(kvm.ALL), self.reported())
        self.assertEqual({}, self.groups())
        self._delete_server(server)
        self.device_spec()
        self.restart_host("host1")
        self.period()
        self.assertEqual([], self.reported())
        self.assertInventory(total=4)
        self.assertGPUs(self.boot(self.gpu_flavor(4)), kvm.ALL)
