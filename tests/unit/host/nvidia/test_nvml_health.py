# SPDX-License-Identifier: Apache-2.0
"""How cards are, by the real probe in a real child process over a stand-in for NVIDIA's binding."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Mapping

import fixtures
from oslotest import base

from nova_gpu.core.health import NvmlHealth
from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import nvml
from tests.fixtures import cards

# A card of today, one that retires pages and knows no more, one that is lost, one of another vendor
LIBRARY = """
    NVML_SUCCESS = 0
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC = 0, 1
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230

    class NVMLError(Exception):
        def __init__(self, value):
            self.value = value

    class Struct:
        def __init__(self, **fields):
            self.__dict__.update(fields)

    CARDS = {b"0000:19:00.0": "today", b"0000:3b:00.0": "old", b"0000:4c:00.0": "lost"}

    def nvmlInit(): pass
    def nvmlShutdown(): pass

    def nvmlDeviceGetHandleByPciBusId(address):
        if address not in CARDS:
            raise NVMLError(6)
        return CARDS[address]

    def nvmlDeviceGetPciInfo(handle):
        if handle == "lost":
            raise NVMLError(15)

    def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
        if handle == "old":
            raise NVMLError(3)
        return {0: 2, 1: 40}[counter] * kind

    def nvmlDeviceGetRetiredPagesPendingStatus(handle):
        if handle == "today":
            raise NVMLError(3)
        return 1

    def nvmlDeviceGetRemappedRows(handle):
        if handle == "old":
            raise NVMLError(3)
        return (1, 2, 1, 0)

    def nvmlDeviceGetUtilizationRates(handle):
        if handle == "old":
            raise NVMLError(3)
        return Struct(gpu=97, memory=10)

    def nvmlDeviceGetMemoryInfo(handle):
        return Struct(used=1 << 20, total=1 << 30)

    def nvmlDeviceGetFieldValues(handle, fields):
        assert fields == [230]
        return [Struct(nvmlReturn=3 if handle == "old" else 0, value=Struct(uiVal=1))]
"""
TODAY, OLD, LOST, OTHER = cards.addresses(
    "0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0"
)


class TestHealth(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", str(self.folder)))
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        nvml._report.cache_clear()
        self.library(LIBRARY)

    def library(self, source: str) -> None:
        (self.folder / "pynvml.py").write_text(textwrap.dedent(source))

    def ask(self, *addresses: PciAddress) -> Mapping[PciAddress, NvmlHealth]:
        return nvml.health(addresses, 60)

    def test_what_each_card_knows(self) -> None:
        told = self.ask(TODAY, OLD, LOST, OTHER)
        self.assertEqual("", self.log.output)
        self.assertEqual({TODAY, OLD, LOST}, set(told))
        self.assertEqual(NvmlHealth(False, 2, 40, None, True, False, 1), told[TODAY])
        self.assertEqual(NvmlHealth(retirement_pending=True), told[OLD])
        self.assertEqual(NvmlHealth(lost=True), told[LOST])

    def test_a_binding_that_knows_no_recovery_action(self) -> None:
        self.library(LIBRARY.replace("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230", ""))
        self.assertIsNone(self.ask(TODAY)[TODAY].recovery_action)

    def test_nobody_asks_about_no_card(self) -> None:
        self.library("raise SystemExit('asked')")
        self.assertEqual({}, self.ask())
        self.assertEqual("", self.log.output)

    def test_nobody_asks_while_an_earlier_probe_hangs(self) -> None:
        hanging = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        self.addCleanup(hanging.kill)
        self.addCleanup(nvml._hanging.clear)
        nvml._hanging.append(hanging)
        self.assertEqual({}, self.ask(TODAY))
        self.assertIn(f"an earlier probe (pid {hanging.pid}) still hangs", self.log.output)
        hanging.kill()
        hanging.wait()
        self.assertIn(TODAY, self.ask(TODAY))

    def test_no_answer(self) -> None:
        for source in ("raise SystemExit('down')", "print('{\"cards\": [{}]}'); raise SystemExit"):
            nvml._report.cache_clear()
            self.library(source)
            self.assertEqual({}, self.ask(TODAY))
            self.assertIn("NVML tells nothing", self.log.output)

    def test_usage(self) -> None:
        told = nvml.usage([TODAY, OLD, OTHER], 60)
        self.assertEqual(nvml.Usage(97, 1 << 20, 1 << 30), told[TODAY])
        self.assertEqual({TODAY: told[TODAY], OLD: nvml.Usage(None, 1 << 20, 1 << 30)}, told)
        self.assertEqual({}, nvml.usage([], 60))
        self.library("raise SystemExit('down')")
        self.assertEqual({}, nvml.usage([TODAY], 60))
        self.assertIn("NVML tells nothing", self.log.output)
