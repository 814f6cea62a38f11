# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses

from nova_gpu.host.pci import identity
from tests.fixtures import cards, nvidia, pci
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:88:00.0"


class IdentityTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = self.host.roots

    def of(self, driver: str | None = "nvidia") -> identity.Identity:
        return identity.read(cards.card(CARD, driver), self.roots)

    def test_of_nvidias_driver(self) -> None:
        self.host.add_gpu(CARD, "10de", "2335")
        self.assertEqual({"nvidia": nvidia.gpu_uuid(CARD)}, self.of())
        path = self.roots.proc / f"driver/nvidia/gpus/{CARD}/information"
        path.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\n")
        self.assertEqual({}, self.of())
        told = dataclasses.replace(cards.card(CARD), uuid="GPU-as-nvml-says")
        self.assertEqual({"nvidia": "GPU-as-nvml-says"}, identity.read(told, self.roots))

    def test_of_amdgpu(self) -> None:
        self.host.add_gpu(CARD, "1002", "74a1")
        self.assertEqual({}, self.of("amdgpu"))
        path = self.host.path(CARD) / "unique_id"
        for text, expected in (("f1b9a0c3d2e45678\n", True), ("0\n", False), ("none\n", False)):
            path.write_text(text)
            self.assertEqual({"amdgpu": text.strip()} if expected else {}, self.of("amdgpu"))

    def test_serial_number(self) -> None:
        self.host.add_gpu(CARD, "10de", "2335", driver="vfio-pci")
        self.assertEqual({}, self.of("vfio-pci"))
        pci.write_serial_number(self.host.path(CARD), 0x00044BFFFE123456)
        self.assertEqual({"pcie": "00-04-4b-ff-fe-12-34-56"}, self.of("vfio-pci"))
        config = self.host.path(CARD) / "config"
        config.write_bytes(config.read_bytes()[:64])  # as who is not root reads it
        self.assertEqual({}, self.of("vfio-pci"))
        for number in (0, 2**64 - 1):
            pci.write_serial_number(self.host.path(CARD), number)
            self.assertEqual({}, self.of("vfio-pci"))

    def test_no_list_of_capabilities(self) -> None:
        self.host.add_gpu(CARD, "10de", "2335", driver="vfio-pci")
        config = self.host.path(CARD) / "config"
        circle = (0x100 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
        for content in (b"\xff" * 4096, b"", bytes(256) + circle + bytes(3836), bytes(260)):
            config.write_bytes(content)
            self.assertEqual({}, self.of("vfio-pci"))

    def test_same(self) -> None:
        one = {"nvidia": "GPU-1", "pcie": "1"}
        self.assertTrue(identity.same(one, {"pcie": "1"}))
        self.assertIs(False, identity.same(one, {"pcie": "2", "nvidia": "GPU-1"}))
        for other in ({}, {"amdgpu": "1"}):
            self.assertIsNone(identity.same(one, other))

    def test_addresses(self) -> None:
        for address in (CARD, "0000:89:00.0"):
            self.host.add_gpu(address, "10de", "2335", totalvfs=4)
        self.host.add_vf(CARD, "0000:88:00.4", "2335")
        self.host.add_gpu("0000:8a:00.0", "10de", "2330")
        (self.host.path("0000:8a:00.0") / "vendor").write_text("no number")
        self.assertEqual({CARD, "0000:89:00.0"}, identity.addresses("10de:2335", self.roots))
