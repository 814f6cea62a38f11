# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.core.availability import Reasons, Scope
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.host.vgpu import division
from nova_gpu.virt.delivery import made_vgpus, ways
from nova_gpu.virt.verify import gather_host, sources
from tests.fixtures import cards, compute, histories, hosts, vgpu
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.cards import reasons

MEDIATING, PROFILED, WHOLE = "0000:3b:00.0", "0000:82:00.0", "0000:af:00.0"
ONE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
TWO = "0b9c8d7e-1111-4222-8333-444455556666"
NODE = "node1"
FIRST, SECOND = cards.card("0000:3b:00.0"), cards.card("0000:af:00.0")
OTHER = cards.card("0000:5e:00.0", "amdgpu")


class TestMade(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        vgpu.add_p4(self.host, MEDIATING)
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=2)
        self.functions = vgpu.add_functions(self.host, PROFILED, 2)
        for function in self.functions:
            vgpu.set_profiles(self.host, function, vgpu.L40S)
        self.notes = self.root / "gpu-vgpus"

    def made(self, owners: dict[str, set[Any]]) -> dict[str, frozenset[Slot]]:
        looked: Any = SimpleNamespace(
            vgpus=self.notes, ways=ways.Ways(self.host.roots, lambda _: None)
        )
        return gather_host.made(looked, division.divided(self.host.gpus(), self.host.roots), owners)

    def test_whose_is_there(self) -> None:
        mediated = Slot.parse(f"{MEDIATING}/nvidia-64/0")
        function, other = (Slot.parse(f"{each}/nvidia-1155/0") for each in self.functions)
        owners = {ONE: {mediated, function}, TWO: {mediated, other, mediated.parent}}
        self.assertEqual({}, self.made(owners))
        vgpu.make(self.host, MEDIATING, "nvidia-64", device_uuid(ONE, mediated))
        vgpu.set_profiles(self.host, self.functions[0], {}, current=1155)
        vgpu.set_profiles(self.host, self.functions[1], {}, current=1156)
        there = {ONE: frozenset({mediated, function})}
        self.assertEqual(there, self.made(owners))
        self.assertEqual({}, self.made({}))
        # Nobody names it or counts it, but it is noted.
        noted = made_vgpus.MadeVGPUs(self.notes)
        noted.add(function, TWO)
        noted.add(mediated, TWO)  # which is not there
        self.assertEqual({TWO: frozenset({function})}, self.made({}))

    def test_plain_function_is_there_as_long_as_its_card_has_it(self) -> None:
        self.host.add_gpu("0000:c3:00.0", "8086", "56c0", totalvfs=1)
        self.host.add_vf("0000:c3:00.0", "0000:c3:00.1")
        here, gone = (Slot.parse(f"0000:c3:00.{each}/vf/0") for each in (1, 2))
        self.assertEqual({ONE: frozenset({here})}, self.made({ONE: {here, gone}}))


class ReadTest(base.BaseTestCase):
    """Of a host with a whole card and one that is given in parts"""

    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        host.add_gpu(WHOLE, "10de", "2335", driver="vfio-pci")
        vgpu.add_p4(host, MEDIATING)
        self.compute = self.useFixture(compute.Compute(host))
        self.looked = self.compute.gpus._discovery
        self.cards = self.read()

    def read(self, reason: str | None = None) -> gather_host.Cards:
        def unavailable(found: Iterable[GPU]) -> dict[PciAddress, Reasons]:
            return {gpu.address: reasons(reason, scope=Scope.ALL) for gpu in found if reason}

        return gather_host.read(self.looked, unavailable)

    def test_cards(self) -> None:
        self.assertEqual({WHOLE}, set(map(str, self.cards.whole)))
        self.assertEqual({MEDIATING}, set(map(str, self.cards.parts)))
        self.assertEqual([MEDIATING], [str(gpu.address) for gpu in self.cards.shared])
        self.assertEqual({MEDIATING}, set(map(str, self.cards.functions)))
        self.assertEqual({}, gather_host.unfit(self.looked, self.cards.whole))
        bad = self.read("it has no IOMMU")
        (card,) = bad.whole
        self.assertEqual({card: "it has no IOMMU"}, gather_host.unfit(self.looked, bad.whole))
        # By the size of what is there already, and of all that was claimed
        slot = Slot.parse(f"{MEDIATING}/nvidia-64/0")
        left = gather_host.free(self.cards.shared, self.cards.parts, {slot}, ())
        free = {key.vgpu_type: count for key, count in left.items()}
        self.assertEqual((0, 3), (free["nvidia-63"], free["nvidia-64"]))

    def test_guests(self) -> None:
        instance = self.compute.instance({"gpus": "1"}, (self.compute.provider("2335"), WHOLE))
        self.compute.spawn(instance)
        xml = f"<domain><uuid>{ONE}</uuid></domain>"
        self.compute.libvirt.domains[ONE] = histories.Domain(ONE, xml, running=False)
        found = gather_host.guests(self.looked, self.compute.libvirt, self.cards)
        its = compute.devices([WHOLE])
        self.assertEqual(sources.Guest(True, its, opened=its), found[instance.uuid])
        self.assertEqual(sources.Guest(False, frozenset()), found[ONE])


class Placement:
    """What is asked of Nova's report client"""

    def __init__(self) -> None:
        self.inventories: dict[str, Any] = {
            "whole": {"PGPU": {"total": 2, "reserved": 1}, "CUSTOM_OTHER": {"total": 9}},
            "parts": {"VGPU": {"total": 8, "reserved": 0}},
        }
        self.allocations: dict[str, Any] = {
            "whole": {"a": {"resources": {"PGPU": 1}}, "b": {"resources": {"CUSTOM_OTHER": 1}}},
            "parts": {"c": {"resources": {"VGPU": 3}}},
        }

    def get_provider_by_name(self, context: object, name: str) -> dict[str, str]:
        return {"uuid": {NODE: "root"}[name]}

    def get_providers_in_tree(self, context: object, uuid: str) -> list[dict[str, str]]:
        names = {"root": NODE, "whole": f"{NODE}_gpu_10de_2335_pci"}
        names |= {"parts": f"{NODE}_gpu_10de_2335_vgpu_nvidia-63", "else": f"{NODE}_pci_0000"}
        assert uuid == "root"
        return [{"uuid": each, "name": name} for each, name in names.items()]

    def get_allocations_for_resource_provider(self, context: object, uuid: str) -> Any:
        return SimpleNamespace(allocations=self.allocations[uuid])

    def get(self, url: str, **kwargs: Any) -> Any:
        found = {"inventories": self.inventories.get(url.split("/")[2], {})}
        return SimpleNamespace(status_code=200, json=lambda: found)


class GatherProvidersTest(base.BaseTestCase):
    def read(self, client: Placement) -> dict[str, sources.Provider]:
        found: dict[PciAddress, gather_host.Card] = {
            FIRST.address: gather_host.Card(FIRST),
            SECOND.address: gather_host.Card(SECOND, reasons("it has no IOMMU")),
            OTHER.address: gather_host.Card(OTHER),
        }
        context: Any = object()
        return gather_host.read_providers(client, context, NODE, DeliveryMode.PCI, found)

    def test_groups(self) -> None:
        found = self.read(Placement())
        self.assertEqual({"whole", "parts"}, found.keys())
        fit = frozenset({FIRST.address})
        name = f"{NODE}_gpu_10de_2335_pci"
        self.assertEqual(sources.Provider(name, 2, 1, {"a": 1}, fit), found["whole"])
        parts = found["parts"]
        self.assertEqual(
            (8, {"c": 3}, "VGPU"), (parts.total, parts.allocated, parts.resource_class)
        )
        self.assertEqual(frozenset(), parts.fit)
        empty = Placement()
        empty.inventories = {}
        self.assertEqual(0, self.read(empty)["whole"].total)
