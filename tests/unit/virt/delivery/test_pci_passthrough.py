# SPDX-License-Identifier: Apache-2.0
"""What a guest of KVM needs, over a generated host; binding has tests of its own."""

from __future__ import annotations

import fixtures
from nova import objects
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.core.model import GPU
from nova_gpu.host.pci import discovery
from nova_gpu.virt.delivery import binding, pci_aliases, pci_passthrough, peer_access
from nova_gpu.virt.usage import ledger
from tests.fixtures import cards, hosts

UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
A, B = "0000:3b:00.0", "0000:5e:00.0"
GIB = 1024


class PrepareTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="libvirt", virt_type="kvm")
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        for address in (A, B):
            self.host.add_gpu(address, "10de", "2330", mapped_mib=8 * GIB)
        spec, noted = pci_aliases.DeviceSpec(()), ledger.Ledger()
        self.way = pci_passthrough.PCIPassthrough(
            *(self.host.roots, spec, self.host.root / "unbound", noted),
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
        return discovery.cards_at(cards.addresses(A, B), self.host.roots)

    def prepare(self, *given: GPU, machine_type: str = "pc-q35-7.2", **extra_specs: str) -> None:
        image = objects.ImageMeta(properties=objects.ImageMetaProps(hw_machine_type=machine_type))
        specs = {f"gpu:{k}": v for k, v in extra_specs.items()}
        flavor = objects.Flavor(extra_specs=specs, memory_mb=4096)
        instance = objects.Instance(flavor=flavor, system_metadata={}, uuid=UUID)
        with fixtures.MonkeyPatch("nova.objects.Instance.image_meta", image):
            self.way.refuse(instance, request.of(specs), given)
        for card in given:
            self.way.prepare(card, UUID)

    def test_memory_that_the_guest_can_map(self) -> None:
        self.config.config(group="gpu", guest_mmio_gib=32)
        self.prepare(*self.cards())
        self.assertEqual([A, B], self.bound)
        self.config.config(group="gpu", guest_mmio_gib=31)
        self.prepare(*self.cards()[:1])
        said = r"32 GiB.* 31 GiB.*\[gpu\]guest_mmio_gib"
        with self.assertRaisesRegex(exception.GuestUnfit, said):
            self.prepare(*self.cards())

    def test_a_flavor_before_its_cards_are_known(self) -> None:
        self.prepare()
        with self.assertRaisesRegex(exception.GuestUnfit, "pc-i440fx-7.2"):
            self.prepare(machine_type="pc-i440fx-7.2")
        self.assertEqual([], self.bound)

    def test_a_word_of_the_flavor(self) -> None:
        with self.assertRaisesRegex(exception.InvalidExtraSpec, "perhaps"):
            self.prepare(*self.cards(), option_rom="perhaps")

    def test_a_card_that_cannot_be_read(self) -> None:
        found = self.cards()
        (self.host.path(B) / "resource").unlink()
        with self.assertRaisesRegex(exception.DeviceUnavailable, B):
            self.prepare(*found)
