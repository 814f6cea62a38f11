# SPDX-License-Identifier: Apache-2.0
"""What a guest of KVM needs, over a generated host; binding has tests of its own."""

from __future__ import annotations

import pathlib

import fixtures
from nova import objects
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.core.model import GPU
from nova_gpu.host.pci import discovery, selection
from nova_gpu.virt.delivery import binding, pci_aliases, pci_passthrough, peer_access
from nova_gpu.virt.usage import ledger
from tests.fixtures import hosts

UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
A, B = "0000:3b:00.0", "0000:5e:00.0"
GIB = 1024


class PrepareTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="libvirt", virt_type="kvm")
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(root)
        for address in (A, B):
            self.host.add_gpu(address, "10de", "2330", mapped_mib=8 * GIB)
        spec, noted = pci_aliases.DeviceSpec(()), ledger.Ledger()
        self.way = pci_passthrough.PCIPassthrough(
            *(self.host.roots, spec, root / "unbound", noted),
            peer_access.Peers(self.host.roots),
        )
        self.bound: list[str] = []
        self.useFixture(
            fixtures.MockPatchObject(
                binding.Bindings,
                "finish",
                lambda _, card, uuid: self.bound.append(str(card.address)),
            )
        )

    def cards(self) -> tuple[GPU, ...]:
        selected = selection.Selection.parse(["10de"], [], [])
        return discovery.discover(self.host.roots, selected, {}, dict)

    def prepare(self, *cards: GPU, machine_type: str = "pc-q35-7.2", **extra_specs: str) -> None:
        image = objects.ImageMeta(properties=objects.ImageMetaProps(hw_machine_type=machine_type))
        specs = {f"gpu:{k}": v for k, v in extra_specs.items()}
        flavor = objects.Flavor(extra_specs=specs, memory_mb=4096)
        instance = objects.Instance(flavor=flavor, system_metadata={}, uuid=UUID)
        with fixtures.MonkeyPatch("nova.objects.Instance.image_meta", image):
            self.way.refuse(instance, request.of(specs), cards)
        for card in cards:
            self.way.prepare(card, UUID)

    def test_fits(self) -> None:
        self.config.config(group="gpu", guest_mmio_gib=32)
        self.prepare(*self.cards())
        self.assertEqual([A, B], self.bound)

    def test_a_flavor_before_its_cards_are_known(self) -> None:
        self.prepare()
        self.assertRaises(exception.GuestUnfit, self.prepare, machine_type="pc-i440fx-7.2")
        self.assertEqual([], self.bound)

    def test_more_memory_than_the_guest_can_map(self) -> None:
        self.config.config(group="gpu", guest_mmio_gib=31)
        self.prepare(*self.cards()[:1])
        with self.assertRaises(exception.GuestUnfit) as raised:
            self.prepare(*self.cards())
        self.assertIn("32 GiB", str(raised.exception))
        self.assertIn("31 GiB", str(raised.exception))
        self.assertIn("[gpu]guest_mmio_gib", str(raised.exception))

    def test_a_machine_without_pci_express(self) -> None:
        with self.assertRaises(exception.GuestUnfit) as raised:
            self.prepare(*self.cards(), machine_type="pc-i440fx-7.2")
        self.assertIn("pc-i440fx-7.2", str(raised.exception))

    def test_a_word_of_the_flavor(self) -> None:
        with self.assertRaises(exception.InvalidExtraSpec) as raised:
            self.prepare(*self.cards(), option_rom="perhaps")
        self.assertIn("perhaps", str(raised.exception))

    def test_a_card_that_cannot_be_read(self) -> None:
        cards = self.cards()
        (self.host.path(B) / "resource").unlink()
        with self.assertRaises(exception.DeviceUnavailable) as raised:
            self.prepare(*cards)
        self.assertIn(B, str(raised.exception))
