# SPDX-License-Identifier: Apache-2.0
"""What the probe is told by NVIDIA's library, beside nvidia-smi: health, use, MIG, NVLinks."""

from __future__ import annotations

import pathlib
import re
import unittest
from collections.abc import Mapping
from typing import ClassVar

from nova_gpu.core import health_verdict
from nova_gpu.core.health_verdict import NvmlHealth
from nova_gpu.core.model import LinkType, PciAddress
from nova_gpu.host import pci_errors as bus_health
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import nvml
from tests.gpu import machine, smi

# nvidia-smi's words for nvml.h's numbers of a fabric's states, and for those of recovery actions
_FABRIC = {None: (None, 0), "Not Started": (1,), "In Progress": (2,), "Completed": (3,)}
_NO_ACTION = "None"
# What others use between two looks may differ; what the driver keeps for itself is more.
_USED_MIB = 256
_LINK = re.compile(r"^\s*Link \d+: .*GB/s", re.MULTILINE)
_MINORS = pathlib.Path("driver/nvidia-caps/mig-minors")


class HealthTest(unittest.TestCase):
    cards: ClassVar[Mapping[PciAddress, smi.Card]]
    health: ClassVar[Mapping[PciAddress, NvmlHealth]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.cards = machine.smi_cards()
        cls.health = nvml.health(cls.cards, machine.TIMEOUT_S)
        machine.keep("health.txt", "".join(f"{a}: {h}\n" for a, h in cls.health.items()))

    def test_health(self) -> None:
        """A card is ill where nvidia-smi says so, and for nothing else."""
        self.assertEqual(self.cards.keys(), self.health.keys())
        for address, card in self.cards.items():
            with self.subTest(address=address):
                health = self.health[address]
                self.assertFalse(health.lost)
                self.assertEqual(card.uncorrected, health.uncorrected)
                self.assertEqual(card.retirement_pending, health.retirement_pending)
                self.assertEqual(card.remapping_pending, health.remapping_pending)
                self.assertEqual(card.remapping_failed, health.remapping_failed)
                if not card.mig:
                    self.assertIn(health.fabric_state, _FABRIC[card.fabric])
                if card.recovery is not None:
                    needs_none = card.recovery.strip() == _NO_ACTION
                    self.assertEqual(needs_none, not health.recovery_action, card.recovery)
                verdict = health_verdict.of_nvml(health)
                self.assertEqual(_ailing(card), verdict is not None, verdict)

    def test_bus(self) -> None:
        for gpu in machine.gpus():
            self.assertEqual((), bus_health.silent(gpu, machine.ROOTS))
            machine.keep(f"bus-{gpu.address}.txt", str(bus_health.bus_errors(gpu, machine.ROOTS)))

    def test_use(self) -> None:
        used = nvml.usage(self.cards, machine.TIMEOUT_S)
        self.assertEqual(self.cards.keys(), used.keys())
        for address, card in self.cards.items():
            usage = used[address]
            assert card.memory_mib and card.used_mib is not None
            assert usage.memory_total and usage.memory_used is not None
            self.assertAlmostEqual(card.memory_mib, usage.memory_total >> 20, delta=1)
            self.assertAlmostEqual(card.used_mib, usage.memory_used >> 20, delta=_USED_MIB)
            self.assertLess(usage.memory_used, usage.memory_total)

    def test_modes(self) -> None:
        """What one card is asked for alone: it is there, and in the mode that nvidia-smi says."""
        modes = nvml.modes(self.cards, machine.TIMEOUT_S)
        self.assertEqual(self.cards.keys(), modes.keys())
        for address, card in self.cards.items():
            self.assertEqual(bool(card.mig), bool(modes[address].mig))
        machine.keep("modules.txt", str(nvml.modules(self.cards, machine.TIMEOUT_S)))


def _ailing(card: smi.Card) -> bool:
    return bool(
        card.uncorrected
        or card.retirement_pending
        or card.remapping_pending
        or card.remapping_failed
        or (card.recovery or _NO_ACTION).strip() != _NO_ACTION
        or (not card.mig and card.fabric in ("Not Started", "In Progress"))
    )


class InstancesTest(unittest.TestCase):
    def test_capabilities(self) -> None:
        """Those of the driver's files, of NVML and of nvidia-smi are the same."""
        for address, card in machine.smi_cards().items():
            with self.subTest(address=address):
                minor = gpu_instances.gpu_minor(address, machine.ROOTS)
                assert minor is not None
                known = gpu_instances.capabilities(minor, machine.ROOTS)
                instances = gpu_instances.instances(known)
                ids = tuple(
                    (instance.gpu_instance, instance.compute_instance) for instance in instances
                )
                self.assertEqual(card.instances, ids)
                layout = machine.facts()[address].mig
                self.assertEqual(bool(card.mig), layout is not None)
                parts = [
                    (instance.gpu_instance, instance.compute_instance) for instance in layout or ()
                ]
                self.assertEqual(list(card.instances), parts)
                if not card.mig:
                    self.assertFalse(gpu_instances.is_divided(address, machine.ROOTS))
                self._has_minors(minor, known)

    def _has_minors(self, gpu: int, known: tuple[gpu_instances.Capability, ...]) -> None:
        """The driver's table of all minors has them under the same names."""
        table = machine.ROOTS.proc / _MINORS
        if not table.exists():
            self.skipTest(f"there is no {table}: this driver knows no MIG")
        lines = [line.rpartition(" ") for line in table.read_text().splitlines()]
        minors = {name: int(number) for name, _, number in lines}
        self.assertIn("config", minors)
        for instance in known:
            path = f"gpu{gpu}/gi{instance.gpu_instance}"
            if instance.compute_instance is not None:
                path += f"/ci{instance.compute_instance}"
            self.assertEqual(minors[f"{path}/access"], instance.minor)


class LinksTest(unittest.TestCase):
    def test_counts(self) -> None:
        """As many links are up as ``nvidia-smi nvlink -s`` lists; a card alone has no peer."""
        cards = nvml.read(nvml.run([], machine.TIMEOUT_S), "gpus")
        for address, facts in cards.items():
            with self.subTest(address=address):
                command = ["nvidia-smi", "nvlink", "-s", "-i", str(address)]
                # Of a card whose links are all down it says so, and may fail.
                text = machine.said(f"nvlink-{address}.txt", command, may_fail=True).decode()
                self.assertEqual(len(_LINK.findall(text)), len(facts["nvlinks"]))

    def test_peers(self) -> None:
        """Each link leads to another card of this host, and that one has it too."""
        gpus = {gpu.address: gpu for gpu in machine.gpus()}
        widths: dict[tuple[PciAddress, PciAddress], int] = {
            (address, link.peer): link.width
            for address, gpu in gpus.items()
            for link in gpu.links
            if link.type is LinkType.NVLINK
        }
        for (one, other), width in widths.items():
            self.assertIn(other, gpus)
            self.assertEqual(width, widths[other, one])
