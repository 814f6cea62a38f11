# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import MappingProxyType

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard
from nova_gpu.host.vgpu import division
from nova_gpu.virt.delivery import ways
from nova_gpu.virt.inventory import discovery
from tests.fixtures import hosts, vgpu
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:82:00.0"
# Names as NVIDIA's g_vgpu_chip_flags.h has them
BY_TIME = {1400: "NVIDIA H200X-70C", 1401: "NVIDIA H200X-141C"}


class SelectionTestCase(HostTestCase):
    libvirt: int | None = 10000000
    told: division.TypesByFunction = MappingProxyType({})

    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="gpu", nvml=False)
        self.host.add_gpu(CARD, "10de", "26b9", totalvfs=4)
        for function in vgpu.add_functions(self.host, CARD, 4):
            vgpu.set_profiles(self.host, function, vgpu.L40S)

    def in_parts(self, *device_spec: str) -> DividedCard | None:
        return self.sorted_out(*device_spec)[0].get(PciAddress.parse(CARD))

    def sorted_out(
        self, *device_spec: str
    ) -> tuple[dict[PciAddress, DividedCard], dict[PciAddress, str]]:
        found = self.host.gpus()
        gpus = {gpu.address: gpu for gpu in found}
        self.config.config(group="pci", device_spec=device_spec)
        own = ways.Ways(self.host.roots, lambda _: None, libvirt_version=lambda: self.libvirt)
        divided = own.divided(found, self.told)
        cards, others = discovery.sorted_out(gpus, divided, own)
        return {address: shared.card for address, shared in cards.items()}, others


class TestInParts(SelectionTestCase):
    def test_what_nova_is_told_to_give(self) -> None:
        named = '{"address": "0000:82:00.6", "managed": "no"}'
        self.assertIsNone(self.in_parts(named))
        self.assertIsNone(self.in_parts('{"vendor_id": "10de", "product_id": "0000"}'))
        self.assertIsNotNone(self.in_parts('{"vendor_id": "10de", "product_id": "1111"}'))
        # What Nova divides itself are mediated devices.
        self.config.config(group="devices", enabled_mdev_types=["nvidia-1155"])
        self.assertIsNotNone(self.in_parts())


class TestOnSwitchedBoard(SelectionTestCase):
    """Eight H200 of which one has functions"""

    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.build("h200-8", self.root / "h200-8")
        self.card = PciAddress.parse("0000:19:00.0")
        self.functions = vgpu.add_functions(self.host, str(self.card), 4)
        self.log = self.useFixture(fixtures.FakeLogger())

    def offered(self, names: dict[int, str]) -> set[str]:
        for function in self.functions:
            vgpu.set_profiles(self.host, function, names)
        parts, _ = self.sorted_out()
        return {*parts[self.card].types} if self.card in parts else set()

    def test_the_whole_card_is_refused_by_name(self) -> None:
        """Before Fabric Manager has answered"""
        self.assertEqual({"nvidia-1400"}, self.offered(BY_TIME))
        said = "the vGPU type NVIDIA H200X-141C is all of H200 SXM 141GB, which is a module of an"
        self.assertIn(said, self.log.output)
        self.assertIn("name smaller types, or MIG-backed ones", self.log.output)
        self.config.config(group="gpu", vgpu_types=["*-141C"])
        self.assertEqual(set(), self.offered(BY_TIME))
        _, others = self.sorted_out()
        self.assertIn("the vGPU type NVIDIA H200X-141C is all of", str(*others[self.card]))

    def test_a_card_for_a_slot(self) -> None:
        (self.host.path(str(self.card)) / "device").write_text("0x233b\n")  # H200 NVL, for a slot
        self.assertEqual({"nvidia-1400", "nvidia-1401"}, self.offered(BY_TIME))

    def test_mig_backed_ones_take_no_fabric(self) -> None:
        self.assertEqual({"nvidia-1414", "nvidia-1421"}, self.offered(vgpu.H200_MIG))
