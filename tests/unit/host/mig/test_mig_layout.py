# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.model import MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, VGPUType
from nova_gpu.host.mig import gpu_instances, mig_layout
from tests.fixtures import cards
from tests.fixtures import nvml as machines
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:18:00.0"
SMALL, LARGE = "1g.18gb", "3g.71gb"
LAYOUT = (
    MIGInstance(1, 0, LARGE, 71680, 3),
    MIGInstance(9, 0, SMALL, 16384, 1),
    MIGInstance(11, 0, SMALL, 16384, 1),
)


class DividedTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "2335", minor=3, mig=[(1, 0), (9, 0), (11, 0)])

    def divided(
        self, layout: Sequence[MIGInstance] | None, driver: str = "nvidia"
    ) -> DividedCard | None:
        card = dataclasses.replace(
            cards.card(CARD, driver), mig=None if layout is None else tuple(layout)
        )
        return mig_layout.divided([card], self.host.roots).get(card.address)

    def assertUnread(self, reason: str, layout: Sequence[MIGInstance] | None) -> None:
        divided_card = self.divided(layout)
        assert divided_card is not None
        self.assertEqual(({}, {}), (divided_card.types, divided_card.parents))
        self.assertIn(reason, divided_card.unread or "")

    def test_types_and_slots(self) -> None:
        types = {
            SMALL: VGPUType(SMALL, memory_mib=16384, per_card=2, slices=1),
            LARGE: VGPUType(LARGE, memory_mib=71680, per_card=1, slices=3),
        }
        numbers = {SMALL: (900, 1100), LARGE: (100,)}
        parent = Parent(VGPUKind.INSTANCE, {}, {SMALL: 2, LARGE: 1}, numbers)
        (address,) = cards.addresses(CARD)
        self.assertEqual(DividedCard(types, {address: parent}), self.divided(LAYOUT))

    def test_nvml_does_not_tell(self) -> None:
        self.assertUnread("NVML does not report them", None)
        self.host.set_mig(CARD, [(1, 0)])
        (self.host.roots.proc / "driver/nvidia/capabilities/gpu3/mig/gi1/access").unlink()
        self.assertUnread("NVML does not report them", None)

    def test_they_contradict_each_other(self) -> None:
        self.assertUnread("instances 1/0, 11/0, 9/0 of it, but NVML reports none", [])
        self.assertUnread("1/0, 11/0, 9/0 of it, but NVML reports 1/0, 9/0", LAYOUT[:2])
        self.host.set_mig(CARD, [])
        self.assertUnread("instances none of it, but NVML reports 1/0", LAYOUT[:1])

    def test_no_profile_or_no_slot(self) -> None:
        for profile in (None, "../1g"):
            other = dataclasses.replace(LAYOUT[2], profile=profile)
            self.assertUnread("the profile of its MIG instance 11/0", [*LAYOUT[:2], other])
        self.host.set_mig(CARD, [(1, 100)])
        layout = [dataclasses.replace(LAYOUT[0], compute_instance=100)]
        self.assertUnread("the profile of its MIG instance 1/100", layout)
        self.host.set_mig(CARD, [])
        self.assertUnread("it is in MIG mode and has no compute instance", [])


OTHER = "0000:19:00.0"


class MIGTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        layout = [(1, 0), (2, 0), (2, 1), (11, 0)]
        self.host.add_gpu(CARD, "10de", "2335", minor=3, mig=layout)
        self.mig = self.host.roots.proc / "driver/nvidia/capabilities/gpu3/mig"


class TestInstances(MIGTestCase):
    def instances(self, card: str = CARD) -> tuple[gpu_instances.MIGDevice, ...]:
        return gpu_instances.of_card(PciAddress.parse(card), self.host.roots)

    def test_no_instance_without_all_that_leads_to_it(self) -> None:
        (self.mig / "gi2/access").write_text("DeviceFileMode: 292\n")
        (self.mig / "gi11/ci0/access").unlink()
        self.assertEqual(["1/0"], [instance.index for instance in self.instances()])


class TestSlots(MIGTestCase):
    def test_is_divided(self) -> None:
        def is_divided(card: str = CARD) -> bool:
            return gpu_instances.is_divided(PciAddress.parse(card), self.host.roots)

        self.assertTrue(is_divided())
        self.assertFalse(is_divided(OTHER))
        self.host.set_mig(CARD, [])
        self.assertFalse(is_divided())
        (self.mig / "gi2").mkdir(parents=True)  # of which nothing can be read
        self.assertTrue(is_divided())

    def test_is_slot_there(self) -> None:
        for number, expected in ((201, True), (202, False), (300, False)):
            slot = Slot.parse(f"{CARD}/1g.18gb/{number}")
            self.assertIs(expected, gpu_instances.is_slot_there(slot, self.host.roots))
        (self.mig / "gi2/ci1/access").write_text("?")
        self.assertTrue(
            gpu_instances.is_slot_there(Slot.parse(f"{CARD}/1g.18gb/201"), self.host.roots)
        )
        elsewhere = Slot.parse(f"{OTHER}/1g.18gb/201")
        self.assertFalse(gpu_instances.is_slot_there(elsewhere, self.host.roots))


MADE = "0000:19:00.0"
# By number of the kind, of nvml.h: the id, how many, slices, MB and the name
PROFILES = {"profile.0": "19 7 1 18432 MIG 1g.18gb", "profile.2": "9 2 3 72704 MIG 3g.71gb"}
# Two of seven slices are another's.
ROOM = {"room.19": "3", "room.9": "0"}
COMPUTE = {"compute.0": "0 1", "compute.2": "2 3"}


class TestParse(base.BaseTestCase):
    def test_what_cannot_be_used(self) -> None:
        for entry, reason in (
            ("1g.18gb", "it has no ="),
            ("h200=1g.18gb", "'h200' is neither an address nor a product"),
            ("10de:2335=", "'' is not a MIG profile"),
            ("10de:2335=1g/18gb", "'1g/18gb' is not a MIG profile"),
        ):
            error = self.assertRaises(
                exception.InvalidOption, mig_layout.parse_profiles, ["10de:2330=1g.10gb", entry]
            )
            self.assertIn(f"[gpu]mig_profile = '{entry}': {reason}; write", str(error))


class TestMake(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(MADE, "10de", "2335", driver="nvidia", minor=0)
        self.library = self.useFixture(machines.Library())
        self.say()

    def say(self, **more: str) -> None:
        """*more* are lines of the library's: ``compute_room="1"``"""
        lines = {"mig": "0 0", **PROFILES, **ROOM}
        lines |= {key[4:]: more.pop(key) for key in [*more] if key.startswith("gpu_")}
        card = machines.Card(MADE, "NVIDIA H200", 9, 143771, "9.0", more=lines)
        self.library.say(card, done=str(self.root / "done"), **COMPUTE, **more)

    def make(self, profile: str = "1g.18gb", timeout_s: float = 60) -> int:
        return mig_layout.make(PciAddress.parse(MADE), profile, self.host.roots, timeout_s)

    def refused(self, profile: str = "1g.18gb", timeout_s: float = 60) -> str:
        error = self.assertRaises(
            exception.DeviceUnavailable, self.make, profile, timeout_s=timeout_s
        )
        return f"{error}"

    def done(self) -> list[str]:
        file = self.root / "done"
        return file.read_text().splitlines() if file.exists() else []

    def test_as_many_as_there_is_room_for(self) -> None:
        """Also of a card that the mode has bound anew; one that is divided is left alone"""
        for ends in ("0", "1"):
            self.say(handles_end=ends)
            self.assertEqual(3, self.make())
            instances = ["gpu instance 19", "compute instance 2"] * 3
            self.assertEqual(["mode 1", *instances], self.done())
            (self.root / "done").unlink()
        self.host.set_mig(MADE, [(9, 0)])
        self.assertEqual((0, []), (self.make(), self.done()))

    def test_another_profile(self) -> None:
        message = self.refused("2g.35gb")
        self.assertIn("wants MIG instances 2g.35gb of it: it has no profile 2g.35gb", message)
        self.assertIn("it has 1g.18gb, 3g.71gb", message)
        self.assertEqual(["mode 1", "mode 0"], self.done())

    def test_nothing_half_done_stays(self) -> None:
        self.say(compute_room="1")
        self.assertIn("Insufficient Resources", self.refused())
        *first, _, undone_second, undone_compute, undone_first, mode = self.done()
        self.assertEqual(["mode 1", "gpu instance 19", "compute instance 2"], first)
        self.assertEqual(
            ["no gpu instance 19", "no compute instance 2", "no gpu instance 19", "mode 0"],
            [undone_second, undone_compute, undone_first, mode],
        )

    def test_a_mode_that_waits_for_a_reset(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.mig.mig_layout._TRIES", 2))
        self.say(gpu_mig_pending="99")
        self.assertIn("a process uses the card, or it must be reset", self.refused())
        self.assertEqual(["mode 1", "mode 0"] * 2, self.done())

    def test_a_driver_that_hangs(self) -> None:
        self.say(init="sh:sleep 60")
        self.assertIn("0.5 s", self.refused(timeout_s=0.5))

    def test_a_card_of_another_driver(self) -> None:
        self.host.bind(MADE, "vfio-pci")
        self.assertIn("it is not bound to NVIDIA's driver", self.refused())
