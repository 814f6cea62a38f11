# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import fixtures
from nova import exception as nova_exception

from nova_gpu.core import availability
from nova_gpu.core.model import DeliveryMode
from nova_gpu.virt.inventory import discovery
from tests.fixtures import nodes, pci, verbs

CARD = "0000:3b:00.0"


class SurveyTestCase(verbs.VerbTestCase):
    def setUp(self) -> None:
        super().setUp(nodes.Nodes.FILES)
        self.config(group="gpu", nvml=False)
        self.log = self.useFixture(fixtures.FakeLogger())

    def discovery(self, virt_type: str, *device_spec: object) -> discovery.Discovery:
        self.config(group="libvirt", virt_type=virt_type)
        self.config(group="pci", device_spec=[json.dumps(each) for each in device_spec])
        return discovery.Discovery()

    def obstacle(self, virt_type: str, *device_spec: object) -> str | None:
        looked = self.discovery(virt_type, *device_spec)
        (card,) = looked.find()
        return availability.text(looked.of_card(card))


class HypervisorTest(SurveyTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "25b6", companions=[pci.AUDIO])
        self.config(group="libvirt", uid_maps=["0:1:1"], gid_maps=["0:1:1"])

    def remove(self) -> None:
        for address in filter(self.host.has, (CARD, CARD.replace(".0", ".1"))):
            self.host.remove(address)

    def test_who_gets_it(self) -> None:
        for virt_type, mode in (
            ("lxc", DeliveryMode.LXC),
            ("kvm", DeliveryMode.PCI),
            ("qemu", DeliveryMode.PCI),
        ):
            with self.subTest(virt_type=virt_type):
                self.assertEqual(mode, self.discovery(virt_type).delivery.mode)
                self.assertIsNone(self.obstacle(virt_type))
        self.assertIn("virt_type = parallels", self.obstacle("parallels") or "")

    def test_what_the_host_has_against_it_whole(self) -> None:
        group = int((self.host.path(CARD) / "iommu_group").resolve().name)
        self.host.add_device("0000:3c:00.0", "8086", "10d3", class_code=0x020000, iommu_group=group)
        self.assertIn("0000:3c:00.0", self.obstacle("kvm") or "")
        self.assertIsNone(self.obstacle("lxc"))

    def test_the_display_the_host_booted_on(self) -> None:
        """It is found and not offered, with a reason. LXC guests have it where it is named."""
        self.remove()
        self.host.add_gpu(CARD, "10de", "25b6", class_code=pci.VGA, boot_vga=True)
        for virt_type in ("kvm", "lxc"):
            self.assertIn("booted on", self.obstacle(virt_type) or "")
        self.config(group="gpu", addresses=[CARD])
        self.assertIn("booted on", self.obstacle("kvm") or "")
        self.assertIsNone(self.obstacle("lxc"))
        self.config(group="gpu", addresses=[])
        self.host.bind(CARD, "vfio-pci")
        self.assertIsNone(self.obstacle("kvm"))

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
        looked = self.discovery("kvm")
        (card,) = looked.find()
        own = looked.identities([card])[card.address]
        self.assertEqual({"amdgpu"}, own.keys())
        more = {CARD: {"pcie": "00-11", "amdgpu": "another"}}
        name = "nova_gpu.privsep.identity.read"
        with fixtures.MonkeyPatch(name, lambda _: more):
            self.assertEqual({**own, "pcie": "00-11"}, looked.identities([card])[card.address])
        with fixtures.MonkeyPatch(name, lambda _: 1 // 0):
            self.assertEqual(own, looked.identities([card])[card.address])
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
        self.assertRaises(nova_exception.NovaException, discovery.Discovery)
