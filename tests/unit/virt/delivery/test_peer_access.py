# SPDX-License-Identifier: Apache-2.0
"""What a guest is told of how its cards reach each other, over a generated host."""

from __future__ import annotations

import dataclasses

import ddt
import fixtures
from nova import objects
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.core.model import GPU
from nova_gpu.virt.delivery import peer_access
from tests.fixtures import cards, hosts, processors
from tests.fixtures.cards import H100, RTX

FIRST, SECOND = (
    cards.placed(f"0000:{bus}:00.0", node, product=H100, pci_root=f"pci0000:{bus}")
    for node, bus in enumerate(("3b", "af"))
)


@ddt.ddt
class CliquesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = self.useFixture(fixtures.TempDir()).path
        self.host = hosts.Host(root, processor=processors.EPYC)
        self.peers = peer_access.Peers(self.host.roots, lambda: 9000000, lambda: 8002002)

    def cliques(
        self, *held: GPU, word: str | None = "required", hidden: bool = False
    ) -> dict[str, int]:
        specs = {"gpus": str(len(held))} | ({"gpu:peer_access": word} if word else {})
        image = objects.ImageMeta(properties=objects.ImageMetaProps())
        if hidden:
            image.properties.img_hide_hypervisor_id = True
        with fixtures.MonkeyPatch("nova.objects.Instance.image_meta", image):
            cliques = self.peers.cliques(objects.Instance(), request.of(specs), held)
        return {str(address): number for address, number in cliques.items()}

    def refused(self, *held: GPU, hidden: bool = False) -> str:
        with self.assertRaises(exception.GuestError) as raised:
            self.cliques(*held, hidden=hidden)
        self.assertEqual({}, self.cliques(*held, word="preferred", hidden=hidden))
        kind = exception.GuestUnfit if hidden else exception.BetterElsewhere
        self.assertIsInstance(raised.exception, kind)
        return str(raised.exception)

    @ddt.data(("required", True), ("preferred", True), ("none", False), (None, False))
    @ddt.unpack
    def test_words(self, word: str | None, has_cliques: bool) -> None:
        expected = {"0000:3b:00.0": 0, "0000:af:00.0": 0} if has_cliques else {}
        self.assertEqual(expected, self.cliques(FIRST, SECOND, word=word))

    def test_products(self) -> None:
        """One alone needs nothing."""
        first, second = (dataclasses.replace(card, product=RTX) for card in (FIRST, SECOND))
        self.assertEqual({}, self.cliques(FIRST))
        self.assertEqual({}, self.cliques(first))
        self.assertEqual({}, self.cliques(FIRST, hidden=True))
        self.assertIn("img_hide_hypervisor_id", self.refused(FIRST, SECOND, hidden=True))
        self.assertIn("GeForce RTX 3090 is none of the products", self.refused(first, second))

    def test_roots(self) -> None:
        processors.write(self.host.roots.proc, processors.SERVER)
        self.assertIn("root complex above 0000:3b:00.0", self.refused(FIRST, SECOND))
        for card in (FIRST, SECOND):
            bus = str(card.pci_root).removeprefix("pci")
            self.host.add_device(f"{bus}:00.0", "8086", "09a2", class_code=0x060000)
        # It is read once between two looks at the host.
        self.assertIn("above 0000:3b:00.0", self.refused(FIRST, SECOND))
        self.peers.look_again()
        self.assertEqual({0}, set(self.cliques(FIRST, SECOND).values()))
        nowhere = dataclasses.replace(SECOND, pci_root=None)
        self.assertIn("above 0000:af:00.0", self.refused(FIRST, nowhere))
