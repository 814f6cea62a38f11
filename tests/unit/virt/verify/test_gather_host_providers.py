# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from oslotest import base

from nova_gpu.core.model import DeliveryMode, PciAddress
from nova_gpu.virt.verify import gather_host
from nova_gpu.virt.verify.gather_host import Card
from nova_gpu.virt.verify.sources import Provider
from tests.fixtures import cards
from tests.fixtures.cards import reasons

NODE = "node1"
ONE, TWO = cards.card("0000:3b:00.0"), cards.card("0000:af:00.0")
OTHER = cards.card("0000:5e:00.0", "amdgpu")


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
    def read(self, client: Placement) -> dict[str, Provider]:
        found: dict[PciAddress, Card] = {
            ONE.address: Card(ONE),
            TWO.address: Card(TWO, reasons("it has no IOMMU")),
            OTHER.address: Card(OTHER),
        }
        context: Any = object()
        return gather_host.read_providers(client, context, NODE, DeliveryMode.PCI, found)

    def test_groups(self) -> None:
        found = self.read(Placement())
        self.assertEqual({"whole", "parts"}, found.keys())
        both, fit = frozenset({ONE.address, TWO.address}), frozenset({ONE.address})
        name = f"{NODE}_gpu_10de_2335_pci"
        self.assertEqual(Provider(name, 2, 1, {"a": 1}, both, fit), found["whole"])
        parts = found["parts"]
        self.assertEqual(
            (8, {"c": 3}, "VGPU"), (parts.total, parts.allocated, parts.resource_class)
        )
        self.assertEqual((frozenset(), frozenset()), (parts.cards, parts.fit))

    def test_group_without_an_inventory(self) -> None:
        client = Placement()
        client.inventories = {}
        self.assertEqual((0, 0), (self.read(client)["whole"].total, 0))
