# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import shutil

from hypothesis import strategies as st

from nova_gpu.core.model import MIGInstance
from nova_gpu.core.vgpu import vgpu, vgpu_capacity
from nova_gpu.core.vgpu.vgpu import of_slot
from nova_gpu.host import nodes
from nova_gpu.host.mig import gpu_instances, mig_layout
from nova_gpu.host.vgpu import division, mdev
from tests.fixtures import cards, damage, hosts
from tests.fixtures import vgpu as divided
from tests.fixtures.bases import fuzz as base

_CARDS = ("0000:3b:00.0", "0000:82:00.0", "0000:c1:00.0")
_PARTS = (
    *("num_heads=", "framebuffer=", "max_resolution=", "low_gm_size: ", "high_gm_size: "),
    *("virtual display, ", " MB video memory", " framebuffer", "MB", "M", "x", ", ", "\n"),
)
_INSTANCES = st.tuples(st.integers(0, 14), st.integers(0, 7))
_PROFILES = (
    st.sampled_from(["1g.18gb", "1c.3g.71gb", "1g.18gb+me", "", "../x"]) | st.none() | base.TEXT
)
_WORDS = st.lists(st.sampled_from(_PARTS) | st.integers().map(str) | base.TEXT).map("".join)


class DividedTest(base.FuzzTestCase):
    """A host with mediated devices, profiles and MIG instances, parts of it as nobody wrote them"""

    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.root / "host")
        for address in _CARDS:
            self.host.add_gpu(address, "10de", "26b9", totalvfs=2, minor=int(address[5:7], 16))
        divided.add_types(self.host, _CARDS[0], divided.TESLA_P4[:2])
        divided.make(self.host, _CARDS[0], "nvidia-64")
        for number, function in enumerate(divided.add_functions(self.host, _CARDS[1], 2)):
            divided.set_profiles(self.host, function, divided.L40S, current=1147 * number)
        (function,) = divided.add_functions(self.host, _CARDS[2], 1)
        divided.add_types(self.host, function, divided.INTEL_GVT[:1])
        self.gpus = self.host.gpus()
        starts = [self.host.root / name for name in ("sys/bus/mdev", "sys/devices")]
        self.paths = sorted(path for start in starts for path in start.rglob("*"))

    @base.fuzzed(harmed=damage.SOME)
    def test_other_contents(self, harmed: list[tuple[int, damage.Harm]]) -> None:
        with damage.all_done(self.paths, harmed):
            before = base.open_files()
            with contextlib.suppress(OSError):  # the list of the mediated devices themselves
                self.check(division.divided(self.gpus, self.host.roots))
            self.assertEqual(before, base.open_files())

    def check(self, cards: dict[vgpu.PciAddress, vgpu.DividedCard]) -> None:
        for card in cards.values():
            self.assertTrue(card.parents or card.unread)
            for address, parent in card.parents.items():
                for type_id, count in (*parent.available.items(), *parent.made.items()):
                    self.assertGreaterEqual(count, 0)
                    slot = vgpu.Slot(address, type_id, count)
                    if type_id in card.types:
                        self.assertEqual(slot, vgpu.Slot.parse(str(slot)))
            most = vgpu.MAX_PER_CARD * len(card.parents)
            for facts in card.types.values():
                self.assertLessEqual(vgpu_capacity.room(card, facts.id).total, most)
                for number in (facts.memory_mib, facts.heads, facts.per_card, facts.slices):
                    self.assertGreater(1 if number is None else number, 0)


class TextsTest(base.FuzzTestCase):
    @base.fuzzed(text=_WORDS)
    def test_descriptions(self, text: str) -> None:
        vgpu_type = mdev.described(vgpu.VGPUType("nvidia-1"), text)
        for number in (
            vgpu_type.memory_mib,
            vgpu_type.heads,
            vgpu_type.per_card,
            *(vgpu_type.resolution or ()),
        ):
            self.assertGreaterEqual(number or 0, 0)

    @base.fuzzed(digits=st.lists(st.from_regex(r"g?i?[0-9]{0,5}x?", fullmatch=True), max_size=4))
    def test_capabilities(self, digits: list[str]) -> None:
        host = hosts.Host(self.root / "mig")
        folder = host.roots.proc / "driver/nvidia/capabilities/gpu0/mig"
        shutil.rmtree(folder, ignore_errors=True)  # of the input before
        for name in filter(None, digits):
            (folder / name / "ci0").mkdir(parents=True, exist_ok=True)
            for path in (folder / name, folder / name / "ci0"):
                (path / "access").write_text("DeviceFileMinor: 3\n")
        for instance in gpu_instances.instances(gpu_instances.capabilities(0, host.roots)):
            self.assertEqual((3, 3), instance.minors)

    @base.fuzzed(
        there=st.sets(_INSTANCES, max_size=4),
        layout=st.none() | st.dictionaries(_INSTANCES, _PROFILES, max_size=4),
        same=st.booleans(),
    )
    def test_layouts(
        self,
        there: set[tuple[int, int]],
        layout: dict[tuple[int, int], str | None] | None,
        same: bool,
    ) -> None:
        """What is offered of a card leads each to another instance that is there."""
        host = hosts.Host(self.root / "layout")
        if not (host.devices / _CARDS[0]).exists():
            host.add_gpu(_CARDS[0], "10de", "2335", minor=0)
        if same and layout is not None:
            there = set(layout)
        host.set_mig(_CARDS[0], sorted(there))
        instances = [MIGInstance(gi, ci, (layout or {})[gi, ci]) for gi, ci in sorted(layout or {})]
        card = dataclasses.replace(
            cards.card(_CARDS[0]), mig=None if layout is None else tuple(instances)
        )
        divided_card = mig_layout.divided([card], host.roots).get(card.address)
        if divided_card is None:
            self.assertEqual((set(), None), (there, layout))
            return
        slots = vgpu_capacity.all_instances(divided_card)
        self.assertEqual(bool(slots), divided_card.unread is None)
        if not slots:
            return
        self.assertEqual(there, set(layout or {}))
        self.assertEqual(there, {of_slot(slot.number) for slot in slots})
        for slot in slots:
            self.assertEqual(slot, vgpu.Slot.parse(str(slot)))
            self.assertEqual((layout or {})[of_slot(slot.number)], slot.type_id)
        own = [nodes.instance_nodes(slot, host.roots)[-1] for slot in slots]
        self.assertEqual(len(slots), len(set(own)))
