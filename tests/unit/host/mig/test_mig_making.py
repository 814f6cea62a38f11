# SPDX-License-Identifier: Apache-2.0
"""The real child process, over a stand-in for NVIDIA's binding and driver."""

from __future__ import annotations

import pathlib
import textwrap

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.mig import mig_making
from tests.fixtures import hosts

CARD = "0000:19:00.0"
# It writes down what is done to the card, and what is undone. Two of seven slices are another's.
LIBRARY = """
    import pathlib

    NVML_DEVICE_MIG_DISABLE, NVML_DEVICE_MIG_ENABLE = 0, 1
    NVML_GPU_INSTANCE_PROFILE_COUNT = 4
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 3
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0
    DONE = pathlib.Path(__file__).with_name("done")
    PROFILES = {0: (19, b"MIG 1g.18gb"), 2: (9, b"MIG 3g.71gb")}
    mode = [0]

    class NVMLError(Exception):
        pass

    class Struct:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    def done(*words):
        with DONE.open("a") as file:
            print(*words, file=file)

    def nvmlInit():
        pass

    def nvmlShutdown():
        pass

    def nvmlDeviceGetHandleByPciBusId(address):
        return address.decode()

    def nvmlDeviceGetMigMode(card):
        return [mode[0], mode[0]]

    def nvmlDeviceSetMigMode(card, wanted):
        done("mode", wanted)
        mode[0] = wanted

    def nvmlDeviceGetGpuInstanceProfileInfo(card, number):
        if number not in PROFILES:
            raise NVMLError("Not Supported")
        return Struct(id=PROFILES[number][0], name=PROFILES[number][1])

    def nvmlDeviceGetGpuInstanceRemainingCapacity(card, profile):
        return {19: 3, 9: 0}[profile]

    def nvmlDeviceCreateGpuInstance(card, profile):
        done("gpu instance", profile)
        return profile

    def nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engine):
        if number == 1:
            raise NVMLError("Not Supported")
        return Struct(id=number, sliceCount=[1, 0, 3][number])

    def nvmlGpuInstanceCreateComputeInstance(instance, profile):
        done("compute instance", profile)
        return profile

    def nvmlGpuInstanceDestroy(instance):
        done("no gpu instance", instance)

    def nvmlComputeInstanceDestroy(instance):
        done("no compute instance", instance)
"""


class TestParse(base.BaseTestCase):
    def test_by_address_and_product(self) -> None:
        said = mig_making.parse([" 10DE:2335 = 1g.18gb", f"{CARD}=1g.18gb+me"])
        self.assertEqual({"10de:2335": "1g.18gb", CARD: "1g.18gb+me"}, said)

    def test_what_cannot_be_used(self) -> None:
        for entry, said in (
            ("1g.18gb", "it has no ="),
            ("h200=1g.18gb", "'h200' is neither an address nor a product"),
            ("10de:2335=", "'' is no profile"),
            ("10de:2335=1g/18gb", "'1g/18gb' is no profile"),
        ):
            error = self.assertRaises(
                exception.InvalidOption, mig_making.parse, ["10de:2330=1g.10gb", entry]
            )
            self.assertIn(f"[gpu]mig_profile = '{entry}': {said}; write", str(error))


class TestMake(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", str(self.folder)))
        self.host = hosts.Host(self.folder / "host")
        self.host.add_gpu(CARD, "10de", "2335", driver="nvidia", minor=0)
        self.library()

    def library(self, *more: str) -> None:
        source = "\n".join(map(textwrap.dedent, (LIBRARY, *more)))
        (self.folder / "pynvml.py").write_text(source)

    def make(self, profile: str = "1g.18gb", timeout_s: float = 60) -> int:
        return mig_making.make(PciAddress.parse(CARD), profile, self.host.roots, timeout_s)

    def refused(self, profile: str = "1g.18gb", timeout_s: float = 60) -> str:
        error = self.assertRaises(
            exception.DeviceUnavailable, self.make, profile, timeout_s=timeout_s
        )
        return f"{error}"

    def done(self) -> list[str]:
        file = self.folder / "done"
        return file.read_text().splitlines() if file.exists() else []

    def test_as_many_as_there_is_room_for(self) -> None:
        self.assertEqual(3, self.make())
        self.assertEqual(["mode 1", *["gpu instance 19", "compute instance 2"] * 3], self.done())

    def test_one_that_is_divided_is_left_alone(self) -> None:
        self.host.set_mig(CARD, [(9, 0)])
        self.assertEqual(0, self.make())
        self.assertEqual([], self.done())

    def test_another_profile(self) -> None:
        said = self.refused("2g.35gb")
        self.assertIn("wants MIG instances 2g.35gb of it: it has no profile 2g.35gb", said)
        self.assertIn("it has 1g.18gb, 3g.71gb", said)
        self.assertEqual(["mode 1", "mode 0"], self.done())

    def test_no_room(self) -> None:
        self.assertIn("it has no room for one", self.refused("3g.71gb"))

    def test_nothing_half_done_stays(self) -> None:
        self.library(
            """
            made = []

            def nvmlGpuInstanceCreateComputeInstance(instance, profile):
                made.append(profile)
                if len(made) == 2:
                    raise NVMLError("Insufficient Resources")
                done("compute instance", profile)
                return profile
            """
        )
        self.assertIn("Insufficient Resources", self.refused())
        *first, _, undone_second, undone_compute, undone_first, mode = self.done()
        self.assertEqual(["mode 1", "gpu instance 19", "compute instance 2"], first)
        self.assertEqual(
            ["no gpu instance 19", "no compute instance 2", "no gpu instance 19", "mode 0"],
            [undone_second, undone_compute, undone_first, mode],
        )

    def test_a_mode_that_waits_for_a_reset(self) -> None:
        self.library("def nvmlDeviceSetMigMode(card, wanted):\n    done('mode', wanted)")
        self.assertIn("somebody uses the card, or it must be reset", self.refused())
        self.assertEqual(["mode 1", "mode 0"], self.done())

    def test_a_driver_that_hangs(self) -> None:
        self.library("def nvmlInit():\n    import time\n    time.sleep(60)")
        self.assertIn("0.5 s", self.refused(timeout_s=0.5))

    def test_without_the_library(self) -> None:
        (self.folder / "pynvml.py").write_text("raise ImportError('no such')")
        self.assertIn("nvidia-ml-py cannot be imported: no such", self.refused())

    def test_a_card_of_another_driver(self) -> None:
        self.host.add_gpu("0000:3b:00.0", "10de", "2335", driver="vfio-pci")
        error = self.assertRaises(
            exception.DeviceUnavailable,
            mig_making.make,
            PciAddress.parse("0000:3b:00.0"),
            "1g.18gb",
            self.host.roots,
            60,
        )
        self.assertIn("NVIDIA's driver does not have it", str(error))
