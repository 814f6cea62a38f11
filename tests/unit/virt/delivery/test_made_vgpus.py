# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import sys
from concurrent import futures

import fixtures
from oslotest import base

from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.vgpu import sriov
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs

INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
ANOTHER = "0b9c8d7e-1111-4222-8333-444455556666"
FIRST = Slot.parse("0000:3b:00.0/nvidia-63/0")
SECOND = Slot.parse("10000:e1:00.0/i915-GVTg_V5_4/11")


class TestMadeVGPUs(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "gpu-vgpus")

    def test_the_next_service_knows(self) -> None:
        made = MadeVGPUs(self.folder)
        self.assertEqual({}, made.instances())
        made.add(FIRST, INSTANCE)
        made.add(SECOND, ANOTHER)
        made.add(SECOND, ANOTHER)
        expected = {FIRST: INSTANCE, SECOND: ANOTHER}
        self.assertEqual(expected, made.instances())
        self.assertEqual(expected, MadeVGPUs(self.folder).instances())
        for name in ("README", f"{INSTANCE}@nothing", "nobody@0000:3b:00.0@nvidia-63@1"):
            (self.folder / name).touch()
        self.assertEqual(expected, MadeVGPUs(self.folder).instances())
        made.remove(FIRST, ANOTHER)  # whose it is not
        self.assertEqual(expected, made.instances())
        made.remove(FIRST, INSTANCE)
        made.remove(FIRST, INSTANCE)
        self.assertEqual({SECOND: ANOTHER}, made.instances())
        self.assertEqual({SECOND: ANOTHER}, MadeVGPUs(self.folder).instances())

    def test_what_the_types_are_called(self) -> None:
        names = {"nvidia-1155": "NVIDIA L40S-24Q", "nvidia-1156": "NVIDIA L40S-48Q"}
        made = MadeVGPUs(self.folder)
        made.add(FIRST, INSTANCE, names)
        made.add(SECOND, ANOTHER)
        types = {type_id: sriov.named(type_id, name) for type_id, name in names.items()}
        expected = {FIRST.parent: types, SECOND.parent: {}}
        self.assertEqual(expected, MadeVGPUs(self.folder).recorded_types())
        self.assertEqual(49152, types["nvidia-1156"].memory_mib)
        (path,) = self.folder.glob(f"{INSTANCE}*")
        for text in ("{", "[]", '{"../x": "y", "nvidia-1": 2}', "[" * 100_000):
            path.write_text(text)
            nothing = {FIRST.parent: {}, SECOND.parent: {}}
            self.assertEqual(nothing, MadeVGPUs(self.folder).recorded_types())
            self.assertEqual({FIRST: INSTANCE, SECOND: ANOTHER}, MadeVGPUs(self.folder).instances())

    def test_threads_side_by_side(self) -> None:
        """Each with slots of its own, as its hold has it"""
        made, count, threads = MadeVGPUs(self.folder), 50, 6
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, before)
        slots = [
            [Slot(FIRST.parent, "nvidia-63", t * count + n) for n in range(count)]
            for t in range(threads)
        ]

        def come_and_go(own: list[Slot]) -> None:
            for slot in own:
                made.add(slot, INSTANCE)
            for slot in own[::2]:
                made.remove(slot, INSTANCE)

        with futures.ThreadPoolExecutor(threads) as executor:
            list(executor.map(come_and_go, slots))
        left = {slot for own in slots for slot in own[1::2]}
        self.assertEqual(left, set(made.instances()))
