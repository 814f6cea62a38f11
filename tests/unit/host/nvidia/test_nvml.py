# SPDX-License-Identifier: Apache-2.0
"""The real probe in a real child process, over a stand-in for NVIDIA's binding."""

from __future__ import annotations

import pathlib
import textwrap

import fixtures
from oslotest import base

from nova_gpu.core import model
from nova_gpu.core.vgpu.mig import MIGInstance
from nova_gpu.host.nvidia import nvml
from tests.fixtures import processes

# Four cards, the last of them lost. The first two are joined by two NVLinks, each to the third by
# one; on one switch are the first by two, the others by one.
HEALTHY = """
    NVML_NVLINK_MAX_LINKS = 6
    NVML_FEATURE_ENABLED = 1

    class NVMLError(Exception):
        pass

    class Struct:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    CARDS = ["00000000:19:00.0", "00000000:3B:00.0", "00010000:4C:00.0", None]
    SWITCH = ("00000000:05:00.0", 2)
    LINKS = {
        0: [(CARDS[1], 0), (CARDS[1], 0), SWITCH, SWITCH, (CARDS[2], 0)],
        1: [(CARDS[0], 0), (CARDS[0], 0), SWITCH, (CARDS[2], 0)],
        2: [None, SWITCH, (CARDS[0], 0), (CARDS[1], 0)],
    }

    def nvmlInit():
        pass

    def nvmlShutdown():
        pass

    def nvmlDeviceGetCount():
        return len(CARDS)

    def nvmlDeviceGetHandleByIndex(index):
        if CARDS[index] is None:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetPciInfo(handle):
        return Struct(busId=CARDS[handle].encode())

    def nvmlDeviceGetName(handle):
        return "NVIDIA H200"

    def nvmlDeviceGetArchitecture(handle):
        return [9, 99, 9][handle]

    def nvmlDeviceGetMemoryInfo(handle):
        if handle == 1:
            raise NVMLError("Not Supported")
        return Struct(total=143771 * 2**20 + 5)

    def nvmlDeviceGetCudaComputeCapability(handle):
        return 9, 0

    def nvmlDeviceGetUUID(handle):
        return f"GPU-{handle}"

    def nvmlDeviceGetMinorNumber(handle):
        return 7 - handle

    def nvmlDeviceGetNvLinkState(handle, link):
        if link >= len(LINKS[handle]):
            raise NVMLError("Invalid Argument")
        return int(LINKS[handle][link] is not None)

    def nvmlDeviceGetNvLinkRemotePciInfo(handle, link):
        return Struct(busId=LINKS[handle][link][0])

    def nvmlDeviceGetNvLinkRemoteDeviceType(handle, link):
        return LINKS[handle][link][1]
"""

FIRST, SECOND, THIRD = map(
    model.PciAddress.parse, ("0000:19:00.0", "0000:3b:00.0", "10000:4c:00.0")
)


class NvmlTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", str(self.folder)))
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        nvml._report.cache_clear()

    def library(self, source: str) -> None:
        (self.folder / "pynvml.py").write_text(textwrap.dedent(source))


class TestQuery(NvmlTestCase):
    def assertNothing(self, *why: str, timeout_s: float = 60) -> None:
        self.assertEqual({}, nvml.query(timeout_s))
        for words in why:
            self.assertIn(words, self.log.output)
        self.assertEqual(1, self.log.output.count("NVML tells nothing"))

    def test_facts(self) -> None:
        self.library(HEALTHY)
        facts = nvml.query(60)
        self.assertEqual([FIRST, SECOND, THIRD], sorted(facts))
        first = facts[FIRST]
        self.assertEqual(("H200", "hopper"), (first.name, first.architecture))
        self.assertEqual((143771, (9, 0)), (first.memory_mib, first.compute_capability))
        self.assertEqual(("GPU-0", 7), (first.uuid, first.minor))
        self.assertEqual("", self.log.output)

    def test_what_the_library_refuses_or_is_too_new_is_none(self) -> None:
        self.library(HEALTHY)
        second = nvml.query(60)[SECOND]
        self.assertIsNone(second.memory_mib)
        self.assertIsNone(second.architecture)
        self.assertEqual("H200", second.name)

    def test_links_are_direct_ones_and_those_through_a_common_switch(self) -> None:
        self.library(HEALTHY)
        links = {
            address: {link.peer: link.width for link in card.links}
            for address, card in nvml.query(60).items()
        }
        self.assertEqual({SECOND: 3, THIRD: 2}, links[FIRST])
        self.assertEqual({FIRST: 3, THIRD: 2}, links[SECOND])
        self.assertEqual({FIRST: 2, SECOND: 2}, links[THIRD])

    def test_no_binding(self) -> None:
        self.library("raise ImportError('No module named pynvml')")
        self.assertNothing("nvidia-ml-py cannot be imported", "install nova-gpu[nvml]")

    def test_no_driver(self) -> None:
        self.library(
            HEALTHY + "\n    def nvmlInit():\n        raise NVMLError('Driver Not Loaded')\n"
        )
        self.assertNothing("nvmlInit: Driver Not Loaded")

    def test_library_that_breaks(self) -> None:
        self.library("import os\nos.abort()")
        self.assertNothing("the probe ended with -6: no message")

    def test_binding_that_breaks(self) -> None:
        self.library("raise RuntimeError('half installed')")
        self.assertNothing("the probe ended with 1: RuntimeError: half installed")

    def test_answer_that_is_none(self) -> None:
        for source in (
            "import os; print('[]', flush=True); os._exit(0)",
            "import os; print('driver says hello', flush=True); os._exit(0)",
            'import os; print(\'{"gpus": [{"address": "here"}]}\', flush=True); os._exit(0)',
        ):
            self.library(source)
            self.assertEqual({}, nvml.query(60))
        self.assertEqual(3, self.log.output.count("cannot be understood"))

    def test_no_interpreter(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("sys.executable", str(self.folder / "python")))
        self.assertNothing("cannot be started", "No such file")

    def test_one_line_for_one_reason(self) -> None:
        self.library("raise ImportError('No module named pynvml')")
        nvml.query(60)
        self.assertNothing("cannot be imported")

    def test_overrun_ends_the_process_and_what_it_started(self) -> None:
        pids = self.folder / "pids"
        self.library(f"""
            import os, subprocess, time
            child = subprocess.Popen(["sleep", "300"])
            with open({str(pids)!r} + '.new', "w") as file:
                file.write(f"{{os.getpid()}} {{child.pid}}")
            os.rename(file.name, {str(pids)!r})
            time.sleep(300)
        """)
        facts, limit_s = processes.hung(nvml.query, lambda _: pids.exists())
        self.assertEqual({}, facts)
        self.assertIn(f"did not answer within {limit_s} s ([gpu]nvml_timeout)", self.log.output)
        for pid in map(int, pids.read_text().split()):
            self.assertTrue(processes.ends(pid), pid)

    def test_a_process_of_its_own_session_without_our_input(self) -> None:
        self.library("""
            import os, json
            error = f"{os.getsid(0) == os.getpid()} {os.read(0, 1)}"
            print(json.dumps({"error": error}), flush=True)
            os._exit(0)
        """)
        self.assertNothing("True b''")


# The second card is not in MIG mode; of the first the second device is none, and the last is one of
# which the library does not tell what it is.
DIVIDED = (
    HEALTHY
    + """
    NVML_DEVICE_MIG_ENABLE = 1
    MIG = {"a": (1, 0, "NVIDIA H200 MIG 3g.71gb"), "b": (9, 0, "NVIDIA H200 MIG 1c.1g.18gb+me"),
           "c": (10, 0, "NVIDIA H200")}
    of_card = nvmlDeviceGetName

    def nvmlDeviceGetMigMode(handle):
        if handle == 2:
            raise NVMLError("Not Supported")
        return [int(handle == 0), 1]

    def nvmlDeviceGetMaxMigDeviceCount(handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(handle, index):
        if index == 1 or index > 3:
            raise NVMLError("Not Found")
        return "a bc"[index]

    def nvmlDeviceGetGpuInstanceId(handle):
        return MIG[handle][0]

    def nvmlDeviceGetComputeInstanceId(handle):
        return MIG[handle][1]

    def nvmlDeviceGetName(handle):
        return MIG[handle][2].encode() if handle in MIG else of_card(handle)

    def nvmlDeviceGetAttributes(handle):
        if handle == "c":
            raise NVMLError("Insufficient Permissions")
        return Struct(memorySizeMB=16384, computeInstanceSliceCount=1)
"""
)


class TestMIG(NvmlTestCase):
    def test_instances(self) -> None:
        self.library(DIVIDED)
        facts = nvml.query(60)
        expected = (
            MIGInstance(1, 0, "3g.71gb", 16384, 1, "GPU-a"),
            MIGInstance(9, 0, "1c.1g.18gb+me", 16384, 1, "GPU-b"),
            MIGInstance(10, 0, None, None, None, "GPU-c"),
        )
        self.assertEqual(expected, facts[FIRST].mig)
        self.assertEqual((None, None), (facts[SECOND].mig, facts[THIRD].mig))
        self.assertEqual("", self.log.output)

    def test_one_that_goes_meanwhile(self) -> None:
        gone = """
    def nvmlDeviceGetComputeInstanceId(handle):
        if handle == "b":
            raise NVMLError("Not Found")
        return 0
"""
        self.library(DIVIDED + gone)
        self.assertEqual(["1/0", "10/0"], [each.index for each in nvml.query(60)[FIRST].mig or ()])

    def test_a_card_in_mig_mode_without_any(self) -> None:
        self.library(
            DIVIDED + "\n    def nvmlDeviceGetMaxMigDeviceCount(handle):\n        return 0\n"
        )
        self.assertEqual((), nvml.query(60)[FIRST].mig)
