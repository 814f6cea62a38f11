# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import types
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.host.pci import discovery, selection
from nova_gpu.host.vgpu import division
from nova_gpu.virt.delivery import made_vgpus, ways
from nova_gpu.virt.verify import gather_vgpus
from tests.fixtures import hosts, vgpu

MEDIATING, PROFILED = "0000:3b:00.0", "0000:82:00.0"
ONE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
TWO = "0b9c8d7e-1111-4222-8333-444455556666"


class TestMade(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(root)
        self.host.add_gpu(MEDIATING, "10de", "1bb3")
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=2)
        vgpu.add_types(self.host, MEDIATING, vgpu.TESLA_P4)
        self.functions = vgpu.add_functions(self.host, PROFILED, 2)
        for function in self.functions:
            vgpu.set_profiles(self.host, function, vgpu.L40S)
        self.notes = root / "gpu-vgpus"

    def made(self, owners: dict[str, set[Any]]) -> dict[str, frozenset[Slot]]:
        chosen = selection.Selection.parse(["10de", "8086"], [], [])
        cards = discovery.discover(self.host.roots, chosen, {}, dict)
        looked: Any = types.SimpleNamespace(
            vgpus=self.notes, ways=ways.Ways(self.host.roots, lambda _: None)
        )
        return gather_vgpus.made(looked, division.divided(cards, self.host.roots), owners)

    def test_whose_is_there(self) -> None:
        mediated = Slot.parse(f"{MEDIATING}/nvidia-64/0")
        function, other = (Slot.parse(f"{each}/nvidia-1155/0") for each in self.functions)
        owners = {ONE: {mediated, function}, TWO: {mediated, other, mediated.parent}}
        self.assertEqual({}, self.made(owners))
        vgpu.make(self.host, MEDIATING, "nvidia-64", device_uuid(ONE, mediated))
        vgpu.set_profiles(self.host, self.functions[0], {}, current=1155)
        vgpu.set_profiles(self.host, self.functions[1], {}, current=1156)
        there = {ONE: frozenset({mediated, function})}
        self.assertEqual(there, self.made(owners))
        self.assertEqual({}, self.made({}))
        # Nobody names it or counts it, but it is noted.
        noted = made_vgpus.MadeVGPUs(self.notes)
        noted.add(function, TWO)
        noted.add(mediated, TWO)  # which is not there
        self.assertEqual({TWO: frozenset({function})}, self.made({}))

    def test_plain_function_is_there_as_long_as_its_card_has_it(self) -> None:
        self.host.add_gpu("0000:c3:00.0", "8086", "56c0", totalvfs=1)
        self.host.add_vf("0000:c3:00.0", "0000:c3:00.1")
        here, gone = (Slot.parse(f"0000:c3:00.{each}/vf/0") for each in (1, 2))
        self.assertEqual({ONE: frozenset({here})}, self.made({ONE: {here, gone}}))
