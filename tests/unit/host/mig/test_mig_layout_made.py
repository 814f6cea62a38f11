# SPDX-License-Identifier: Apache-2.0
"""The real child process and NVIDIA's binding, over a stand-in for the library below it."""

from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.mig import mig_layout
from tests.fixtures import nvml as machines
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:19:00.0"
# By number of the kind, of nvml.h: the id, how many, slices, MB and the name
PROFILES = {"profile.0": "19 7 1 18432 MIG 1g.18gb", "profile.2": "9 2 3 72704 MIG 3g.71gb"}
# Two of seven slices are another's.
ROOM = {"room.19": "3", "room.9": "0"}
COMPUTE = {"compute.0": "0 1", "compute.2": "2 3"}


class TestParse(base.BaseTestCase):
    def test_by_address_and_product(self) -> None:
        said = mig_layout.parse_profiles([" 10DE:2335 = 1g.18gb", f"{CARD}=1g.18gb+me"])
        self.assertEqual({"10de:2335": "1g.18gb", CARD: "1g.18gb+me"}, said)

    def test_what_cannot_be_used(self) -> None:
        for entry, said in (
            ("1g.18gb", "it has no ="),
            ("h200=1g.18gb", "'h200' is neither an address nor a product"),
            ("10de:2335=", "'' is not a MIG profile"),
            ("10de:2335=1g/18gb", "'1g/18gb' is not a MIG profile"),
        ):
            error = self.assertRaises(
                exception.InvalidOption, mig_layout.parse_profiles, ["10de:2330=1g.10gb", entry]
            )
            self.assertIn(f"[gpu]mig_profile = '{entry}': {said}; write", str(error))


class TestMake(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "2335", driver="nvidia", minor=0)
        self.library = self.useFixture(machines.Library())
        self.say()

    def say(self, **more: str) -> None:
        """*more* are lines of the library's: ``compute_room="1"``"""
        lines = {"mig": "0 0", **PROFILES, **ROOM}
        lines |= {key[4:]: more.pop(key) for key in [*more] if key.startswith("gpu_")}
        card = machines.Card(CARD, "NVIDIA H200", 9, 143771, "9.0", more=lines)
        self.library.say(card, done=str(self.root / "done"), **COMPUTE, **more)

    def make(self, profile: str = "1g.18gb", timeout_s: float = 60) -> int:
        return mig_layout.make(PciAddress.parse(CARD), profile, self.host.roots, timeout_s)

    def refused(self, profile: str = "1g.18gb", timeout_s: float = 60) -> str:
        error = self.assertRaises(
            exception.DeviceUnavailable, self.make, profile, timeout_s=timeout_s
        )
        return f"{error}"

    def done(self) -> list[str]:
        file = self.root / "done"
        return file.read_text().splitlines() if file.exists() else []

    def test_as_many_as_there_is_room_for(self) -> None:
        self.assertEqual(3, self.make())
        self.assertEqual(["mode 1", *["gpu instance 19", "compute instance 2"] * 3], self.done())

    def test_a_card_that_the_mode_has_bound_anew(self) -> None:
        self.say(handles_end="1")
        self.assertEqual(3, self.make())
        self.assertEqual(7, len(self.done()))

    def test_one_that_is_divided_is_left_alone(self) -> None:
        self.host.set_mig(CARD, [(9, 0)])
        self.assertEqual(0, self.make())
        self.assertEqual([], self.done())

    def test_another_profile(self) -> None:
        said = self.refused("2g.35gb")
        self.assertIn("wants MIG instances 2g.35gb of it: it has no profile 2g.35gb", said)
        self.assertIn("it has 1g.18gb, 3g.71gb", said)
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

    def test_without_the_library(self) -> None:
        (self.root / "pynvml.py").write_text("raise ImportError('no such')")
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", str(self.root)))
        self.assertIn("nvidia-ml-py cannot be imported: no such", self.refused())

    def test_a_card_of_another_driver(self) -> None:
        self.host.add_gpu("0000:3b:00.0", "10de", "2335", driver="vfio-pci")
        error = self.assertRaises(
            exception.DeviceUnavailable,
            mig_layout.make,
            PciAddress.parse("0000:3b:00.0"),
            "1g.18gb",
            self.host.roots,
            60,
        )
        self.assertIn("it is not bound to NVIDIA's driver", str(error))
