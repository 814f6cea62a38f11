# SPDX-License-Identifier: Apache-2.0
"""How cards are, by the real probe and nvidia-ml-py over a library with NVML's ABI."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping

from nova_gpu.core.health_verdict import NvmlHealth
from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import nvml
from tests.fixtures import cards
from tests.fixtures import nvml as machines
from tests.fixtures.bases.nvml import NvmlTestCase

FABRIC = f"3 0 0 {'0' * 32}"

TODAY, OLD, LOST, OTHER = cards.addresses(
    "0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0", "0000:5d:00.0"
)


def machine() -> list[machines.Card]:
    """A card of today, one that retires pages and knows no more, one that is lost"""
    today, old, lost = (
        machines.Card(str(each), "NVIDIA H200", 9, 1024, "9.0") for each in (TODAY, OLD, LOST)
    )
    told = {"ecc.1.0": "2", "ecc.1.1": "40", "remapped": "1 2 1 0", "field.230": "1"}
    return [
        dataclasses.replace(today, fabric=FABRIC, more=told | {"utilization": "97 10"}),
        dataclasses.replace(old, more={"retirement_pending": "1"}),
        dataclasses.replace(lost, more={"pci": machines.LOST}),
    ]


class TestHealth(NvmlTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.library.say(*machine())

    def ask(self, *addresses: PciAddress) -> Mapping[PciAddress, NvmlHealth]:
        return nvml.health(addresses, 60)

    def test_what_each_card_knows(self) -> None:
        told = self.ask(TODAY, OLD, LOST, OTHER)
        self.assertEqual("", self.log.output)
        self.assertEqual("Not Found", told[OTHER].refused)
        self.assertEqual(
            NvmlHealth(False, 2, None, True, False, 1, 3, 0, fabric_health=0), told[TODAY]
        )
        self.assertEqual(NvmlHealth(retirement_pending=True), told[OLD])
        self.assertEqual(NvmlHealth(lost=True, refused="GPU is lost"), told[LOST])

    def test_a_binding_that_knows_no_recovery_action(self) -> None:
        self.binding(machines.older_binding())
        told = self.ask(TODAY, OLD)
        self.assertEqual(
            NvmlHealth(False, 2, None, True, False, None, 3, 0, fabric_health=0), told[TODAY]
        )
        self.assertEqual(NvmlHealth(retirement_pending=True), told[OLD])

    def test_the_fabric(self) -> None:
        for told, state, status in (("1 0 0 0", 1, 0), ("3 999 0 0", 3, 999), ("0 0 0 0", 0, 0)):
            today = dataclasses.replace(machine()[0], fabric=told)
            self.library.say(today)
            found = self.ask(TODAY)[TODAY]
            self.assertEqual((state, status), (found.fabric_state, found.fabric_status))
        self.library.say(dataclasses.replace(today, fabric="3 0 0 0 16"))
        self.assertEqual(16, self.ask(TODAY)[TODAY].fabric_health)
        # What is in MIG mode needs none.
        self.library.say(dataclasses.replace(today, fabric="1 0 0 0", mig=()))
        self.assertIsNone(self.ask(TODAY)[TODAY].fabric_state)

    def test_one_bad_answer(self) -> None:
        answer: dict[str, list[dict[str, object]]] = {"cards": []}
        for address, count in (("0000:19:00.0", "many"), ("0000:3b:00.0", 1)):
            answer["cards"].append({"address": address, "uncorrected": count})
        answer["cards"].append({})
        self.binding(f"print({json.dumps(answer)!r}, flush=True); import os; os._exit(0)")
        self.assertEqual({OLD: NvmlHealth(uncorrected=1)}, self.ask(TODAY, OLD))

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

    def test_what_the_driver_keeps_for_itself_is_not_used(self) -> None:
        """As on an idle H100 with driver 580: 480 MiB are reserved, and nvidia-smi says 0 MiB."""
        idle = dataclasses.replace(machine()[0], more={"memory": f"{81559 << 20} 0 {480 << 20}"})
        self.library.say(idle)
        self.assertEqual(nvml.Usage(None, 0, 81559 << 20), nvml.usage([TODAY], 60)[TODAY])
        self.binding(machines.older_binding())
        self.assertEqual(nvml.Usage(None, 480 << 20, 81559 << 20), nvml.usage([TODAY], 60)[TODAY])

    def test_usage(self) -> None:
        told = nvml.usage([TODAY, OLD, OTHER], 60)
        self.assertEqual(nvml.Usage(97, 1 << 20, 1 << 30), told[TODAY])
        self.assertEqual({TODAY: told[TODAY], OLD: nvml.Usage(None, 1 << 20, 1 << 30)}, told)
        self.assertEqual({}, nvml.usage([], 60))
        self.binding("raise SystemExit('down')")
        self.assertEqual({}, nvml.usage([TODAY], 60))
        self.assertIn("NVML does not answer about", self.log.output)
