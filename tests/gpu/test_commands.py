# SPDX-License-Identifier: Apache-2.0
"""What nova-gpu prints on the machine: its record, its list of cards, its metrics."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from nova_gpu.core.model import PciAddress
from tests.fixtures import adopted, compiled
from tests.gpu import machine

_CONFIG = """[DEFAULT]
state_path = {state}
[libvirt]
virt_type = lxc
"""


class CommandsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.config = self.folder / "nova.conf"
        self.config.write_text(_CONFIG.format(state=self.folder))

    def printed(self, name: str, *arguments: str) -> str:
        program = pathlib.Path(sys.executable).with_name("nova-gpu")
        return self.run_program(name, [str(program)], *arguments)

    def run_program(self, name: str, program: list[str], *arguments: str) -> str:
        argv = [*program, "--config-file", str(self.config), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * machine.TIMEOUT_S)
        machine.keep(name, done.stdout)
        machine.keep(f"{name}.stderr", done.stderr)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def test_record(self) -> None:
        """A record is a machine of the tests, whatever the card, and says whose it is nowhere."""
        text = self.run_program("record.yaml", [sys.executable, "-m", "lab.record"])
        self.assertNotIn("# NVML tells nothing", text)
        for card in machine.smi_cards().values():
            self.assertIn(str(card.address), text)
            self.assertNotIn(card.uuid.removeprefix("GPU-"), text)
        if not compiled.compiler():
            self.skipTest("no C compiler (gcc), to build a stand-in for NVML with")
        path = self.folder / "printed.yaml"
        path.write_text(text)
        self.assertTrue(adopted.adopt(path, "real", self.folder).exists())

    def test_list(self) -> None:
        cards = json.loads(self.printed("list.json", "list", "--format", "json"))
        smi_cards = machine.smi_cards()
        by_address = {PciAddress.parse(card["address"]): card for card in cards}
        self.assertLessEqual(smi_cards.keys(), by_address.keys())
        for address, card in smi_cards.items():
            self.assertIn(by_address[address]["name"], card.name)

    def test_metrics(self) -> None:
        text = self.printed("metrics.txt", "exporter", "--once")
        samples = dict(
            line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
        )
        self.assertEqual("1.0", samples["nova_gpu_up"])
        for card in machine.smi_cards().values():
            with self.subTest(address=card.address):
                total = float(samples[f'nova_gpu_memory_total_bytes{{address="{card.address}"}}'])
                assert card.memory_mib
                self.assertAlmostEqual(card.memory_mib, total / 2**20, delta=1)
                used = float(samples[f'nova_gpu_memory_used_bytes{{address="{card.address}"}}'])
                self.assertLess(used, total)
                healthy = samples[f'nova_gpu_healthy{{address="{card.address}"}}']
                self.assertIn(healthy, ("0.0", "1.0"))
