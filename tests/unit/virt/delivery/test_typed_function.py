# SPDX-License-Identifier: Apache-2.0
"""What is NVIDIA's functions' own; the rest is in test_hostdev_parts."""

from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Kind
from nova_gpu.virt.delivery import pci_aliases, typed_function
from tests.fixtures import cards, hosts, vgpu

CARD = "0000:82:00.0"


class TypedFunctionsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        self.host.add_gpu(CARD, "10de", "26b9", totalvfs=1)
        (function,) = vgpu.add_functions(self.host, CARD, 1)
        self.host.bind(function, "nvidia")
        self.host.register_with_vfio(function)
        self.function = function
        self.libvirt: int | None = 10000000

    def obstacle(self) -> str:
        spec = pci_aliases.DeviceSpec(())
        way = typed_function.TypedFunctions(self.host.roots, spec, lambda: self.libvirt)
        self.assertEqual((Kind.TYPED, True, False), (way.kind, way.may_wedge, way.managed))
        return way.obstacle(cards.card(CARD), [PciAddress.parse(self.function)]) or ""

    def test_libvirt_that_leaves_it_with_its_driver(self) -> None:
        self.assertEqual("", self.obstacle())
        self.libvirt = 9010000
        self.assertIn("libvirt 9.10.0 starts no guest", self.obstacle())
        self.libvirt = None
        self.assertIn("does not report its version", self.obstacle())

    def test_driver_that_lets_no_guest_have_it(self) -> None:
        self.host.bind(self.function, "nvidia")  # which does not register it with VFIO
        self.assertIn("no vfio-dev in sysfs", self.obstacle())
