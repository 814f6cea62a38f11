# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core import exception, unavailability
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, VGPUKind, VGPUType
from nova_gpu.virt import card_sets
from nova_gpu.virt.delivery import deliveries
from nova_gpu.virt.inventory import discovery
from tests.fixtures import hosts, nodes, pci, verbs, vgpu
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:3b:00.0"
# Names as NVIDIA's g_vgpu_chip_flags.h has them
BY_TIME = {1400: "NVIDIA H200X-70C", 1401: "NVIDIA H200X-141C"}


class SurveyTestCase(verbs.VerbTestCase):
    def setUp(self) -> None:
        super().setUp(nodes.Nodes.FILES)
        self.config(group="gpu", nvml=False)
        self.log = self.useFixture(fixtures.FakeLogger())

    def discovery(self, virt_type: str, *device_spec: object) -> discovery.Discovery:
        self.config(group="libvirt", virt_type=virt_type)
        self.config(group="pci", device_spec=[json.dumps(spec) for spec in device_spec])
        return discovery.Discovery()

    def obstacle(self, virt_type: str, *device_spec: object) -> str | None:
        host_discovery = self.discovery(virt_type, *device_spec)
        (card,) = host_discovery.find()
        return unavailability.text(host_discovery.of_card(card))


class HypervisorTest(SurveyTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "25b6", companions=[pci.AUDIO])
        self.config(group="libvirt", uid_maps=["0:1:1"], gid_maps=["0:1:1"])

    def test_what_the_host_has_against_it_whole(self) -> None:
        for virt_type in ("lxc", "kvm", "qemu"):
            self.assertIsNone(self.obstacle(virt_type), virt_type)
        self.assertIn("virt_type = parallels", self.obstacle("parallels") or "")
        group = int((self.host.path(CARD) / "iommu_group").resolve().name)
        self.host.add_device("0000:3c:00.0", "8086", "10d3", class_code=0x020000, iommu_group=group)
        self.assertIn("0000:3c:00.0", self.obstacle("kvm") or "")
        self.assertIsNone(self.obstacle("lxc"))

    def test_nvml_only_where_the_host_keeps_its_cards(self) -> None:
        self.config(group="gpu", nvml=True)
        query = fixtures.MockPatch("nova_gpu.host.nvidia.nvml.query", return_value={})
        self.useFixture(query)
        self.discovery("kvm").find()
        query.mock.assert_not_called()
        self.discovery("lxc").find()
        query.mock.assert_called_once()


class IdentitiesTest(SurveyTestCase):
    def test_what_root_can_read_besides(self) -> None:
        """Without it, what nova-compute itself can read of the card"""
        self.host.add_gpu(CARD, "1002", "740c")
        unique = self.host.path(CARD) / "unique_id"
        unique.write_text("0123456789abcdef\n")
        host_discovery = self.discovery("kvm")
        (card,) = host_discovery.find()
        own = host_discovery.identities([card])[card.address]
        self.assertEqual({"amdgpu"}, own.keys())
        more = {CARD: {"pcie": "00-11", "amdgpu": "another"}}
        name = "nova_gpu.privsep.readings.serial_numbers"
        with fixtures.MonkeyPatch(name, lambda _: more):
            self.assertEqual(
                {**own, "pcie": "00-11"}, host_discovery.identities([card])[card.address]
            )
        with fixtures.MonkeyPatch(name, lambda _: 1 // 0):
            self.assertEqual(own, host_discovery.identities([card])[card.address])
        self.assertIn("Cannot read the serial numbers of GPUs", self.log.output)


class DeviceSpecTest(SurveyTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "25b6", companions=[pci.AUDIO])

    def test_specs_that_match(self) -> None:
        by_function = {"domain": ".*", "bus": "3b", "slot": "00", "function": "1"}
        for spec, function in (
            ({"vendor_id": "10de"}, CARD),
            ({"vendor_id": "10de", "product_id": "25b6"}, CARD),
            ({"address": "*:3b:00.*"}, CARD),
            ({"address": by_function}, CARD.replace(".0", ".1")),
            ({"product_id": "10f0"}, CARD.replace(".0", ".1")),
        ):
            with self.subTest(spec=spec):
                reason = self.obstacle("kvm", {"vendor_id": "8086"}, spec) or ""
                words = ("[pci]device_spec", "pci_passthrough:alias", "compute_driver")
                for part in (*words, "[gpu]addresses", function, json.dumps(spec)):
                    self.assertIn(part, reason)

    def test_specs_that_do_not(self) -> None:
        """Containers get no PCI devices anyway."""
        self.assertIsNone(self.obstacle("kvm", {"vendor_id": "8086"}, {"address": "*:3c:00.*"}))
        self.config(group="libvirt", uid_maps=["0:1:1"], gid_maps=["0:1:1"])
        self.assertIsNone(self.obstacle("lxc", {"vendor_id": "10de"}))
        self.config(group="libvirt", virt_type="kvm")
        self.config(group="pci", device_spec=["{"])
        self.assertRaises(exception.InvalidOption, discovery.Discovery)


class TestOnSwitchedBoard(HostTestCase):
    """Eight H200 of which one has functions"""

    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(group="gpu", nvml=False)
        self.host = hosts.build("h200-8", self.root / "h200-8")
        self.card = PciAddress.parse("0000:19:00.0")
        self.functions = vgpu.add_functions(self.host, str(self.card), 4)
        self.log = self.useFixture(fixtures.FakeLogger())

    def sorted_out(self) -> tuple[dict[PciAddress, DividedCard], dict[PciAddress, str]]:
        all_gpus = self.host.gpus()
        own = deliveries.Deliveries(
            self.host.roots, lambda _: None, libvirt_version=lambda: 10000000
        )
        gpus = {gpu.address: gpu for gpu in all_gpus}
        cards, others = discovery.sorted_out(gpus, own.divided(all_gpus, {}), own)
        return {address: shared.card for address, shared in cards.items()}, others

    def offered(self, names: dict[int, str]) -> set[str]:
        for function in self.functions:
            vgpu.set_profiles(self.host, function, names)
        parts, _ = self.sorted_out()
        return {*parts[self.card].types} if self.card in parts else set()

    def test_the_whole_card_is_refused_by_name(self) -> None:
        """Before Fabric Manager has answered"""
        self.assertEqual({"nvidia-1400"}, self.offered(BY_TIME))
        message = (
            "the vGPU type NVIDIA H200X-141C is all of H200 SXM 141GB, which is a module of an"
        )
        self.assertIn(message, self.log.output)
        self.assertIn("name smaller types, or MIG-backed ones", self.log.output)
        self.config(group="gpu", vgpu_types=["*-141C"])
        self.assertEqual(set(), self.offered(BY_TIME))
        _, others = self.sorted_out()
        self.assertIn("the vGPU type NVIDIA H200X-141C is all of", str(*others[self.card]))

    def test_a_card_for_a_slot(self) -> None:
        (self.host.path(str(self.card)) / "device").write_text("0x233b\n")  # H200 NVL, for a slot
        self.assertEqual({"nvidia-1400", "nvidia-1401"}, self.offered(BY_TIME))

    def test_mig_backed_ones_take_no_fabric(self) -> None:
        self.assertEqual({"nvidia-1414", "nvidia-1421"}, self.offered(vgpu.H200_MIG))


MODULE, PLUGGED = "0000:86:00.0", "0000:3b:00.0"


class UnjoinedTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(MODULE, "10de", "2330")  # H100 SXM5
        self.host.add_gpu(PLUGGED, "10de", "2331")  # H100 PCIe
        self.host.add_device("0000:05:00.0", "10de", "22a3", class_code=0x068000)  # an NVSwitch
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.core.extensions.load", lambda group: []))
        self.sets = card_sets.of_machines(self.host.roots, None)

    def card(self, address: str) -> GPU:
        return next(card for card in self.host.gpus() if str(card.address) == address)

    def test_a_module_of_a_board_is_not_given(self) -> None:
        reason = self.sets.why_not(self.card(MODULE)) or ""
        self.assertIn("is a module of an HGX board: no extension of nova-gpu", reason)
        self.assertIsNone(self.sets.why_not(self.card(PLUGGED)))

    def test_nor_is_a_vgpu_that_is_all_of_it(self) -> None:
        function = PciAddress.parse(MODULE)
        types = {
            "nvidia-1": VGPUType("nvidia-1", "whole", per_card=1),
            "nvidia-2": VGPUType("nvidia-2", "half", per_card=2),
        }
        divided = DividedCard(types, {function: Parent(VGPUKind.MEDIATED, {}, {})})
        self.assertEqual({"nvidia-1"}, self.sets.look_at_parts(self.card(MODULE), divided).keys())
        self.assertEqual({}, self.sets.look_at_parts(self.card(PLUGGED), divided))

        withheld = self.sets.withheld(self.card(MODULE), divided)
        self.assertEqual({"nvidia-1"}, withheld.keys())
        self.assertEqual({}, self.sets.withheld(self.card(PLUGGED), divided))
