# SPDX-License-Identifier: Apache-2.0
"""When NVML is asked; what it tells is read in tests/unit/host/nvidia."""

from __future__ import annotations

import json

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, VGPUKind, VGPUType
from nova_gpu.virt.delivery import vgpu_types
from tests.fixtures import cards
from tests.fixtures.bases.host import HostTestCase

TYPED, MEDIATED = "0000:82:00.0", "0000:3b:00.0"


def told(address: str) -> dict[str, object]:
    """As nova_gpu/host/scripts/nvml_probe.py writes it, of a card that is not in MIG mode"""
    own = {"id": 1155, "name": "NVIDIA L40S-8Q", "memory": 8 << 30, "profile": None, "heads": 4}
    more = {"resolution": [7680, 4320], "most": 6, "per_instance": 1, "per_guest": 1}
    places = {"places": [], "place_size": None}
    return {"address": address, "instances": None, "types": [{**own, **more, **places}]}


class VGPUTypesTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host.add_gpu(TYPED, "10de", "26b9", mig=[])
        self.queries: list[list[str]] = []
        self.error: Exception | None = None
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.vgpu.types", self._types))
        self.now = 1000.0
        self.useFixture(fixtures.MonkeyPatch("time.monotonic", lambda: self.now))
        self.types = vgpu_types.VGPUTypes(self.host.roots)

    def _types(self, addresses: list[str]) -> str:
        self.queries.append(addresses)
        if self.error:
            raise self.error
        return json.dumps({"cards": [told(address) for address in addresses]})

    def memory(self) -> int | None:
        """Of the type, as it is known after a look"""
        divided_cards: dict[PciAddress, DividedCard] = {}
        for address, kind in ((TYPED, VGPUKind.TYPED), (MEDIATED, VGPUKind.MEDIATED)):
            card = PciAddress.parse(address)
            types = {"nvidia-1155": VGPUType("nvidia-1155")}
            divided_cards[card] = DividedCard(types, {card: Parent(kind, {"nvidia-1155": 1}, {})})
        gpus: list[GPU] = [cards.card(TYPED), cards.card(MEDIATED, "i915")]
        complete = self.types.complete(gpus, divided_cards)
        self.assertEqual(divided_cards.keys(), complete.keys())
        other = PciAddress.parse(MEDIATED)
        self.assertEqual(divided_cards[other], complete[other], "of another driver")
        return complete[PciAddress.parse(TYPED)].types["nvidia-1155"].memory_mib

    def test_mediated_devices_of_nvidias_driver(self) -> None:
        """Of which sysfs tells all else."""
        gpu = cards.card(MEDIATED)
        types = {"nvidia-1155": VGPUType("nvidia-1155", memory_mib=1)}
        parents = {gpu.address: Parent(VGPUKind.MEDIATED, {"nvidia-1155": 1}, {})}
        divided = {gpu.address: DividedCard(types, parents)}
        complete = self.types.complete([gpu], divided)[gpu.address]
        known = VGPUType("nvidia-1155", memory_mib=1, per_guest=1)
        self.assertEqual({"nvidia-1155": known}, complete.types)

    def test_once(self) -> None:
        """Each question has the card's node open, which a guest may want."""
        for _ in range(3):
            self.assertEqual(8192, self.memory())
            self.now += CONF.gpu.health_interval
        self.assertEqual([[TYPED]], self.queries)
        # And again where its layout changes
        self.host.set_mig(TYPED, [(1, 0)])
        self.memory()
        self.assertEqual([[TYPED], [TYPED]], self.queries)

    def test_what_is_not_answered_is_asked_seldom(self) -> None:
        self.error = OSError("no daemon")
        for _ in range(3):
            self.assertIsNone(self.memory())
        self.assertEqual(1, len(self.queries))
        self.assertIn(
            "NVML does not answer about this host's vGPU types, whose facts", self.log.output
        )
        self.error = None
        self.now += CONF.gpu.health_interval
        self.assertEqual(8192, self.memory())
        self.config(group="gpu", nvml=False)
        self.types, count = vgpu_types.VGPUTypes(self.host.roots), len(self.queries)
        self.assertIsNone(self.memory())
        self.assertEqual(count, len(self.queries))
