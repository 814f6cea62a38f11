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
    told: ClassVar[Mapping[PciAddress, smi.Card]]
    found: ClassVar[Mapping[PciAddress, NvmlHealth]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.told = machine.smi_cards()
        cls.found = nvml.health(cls.told, machine.TIMEOUT_S)
        machine.keep("health.txt", "".join(f"{a}: {h}\n" for a, h in cls.found.items()))

    def test_health(self) -> None:
        """A card is ill where nvidia-smi says so, and for nothing else."""
        self.assertEqual(self.told.keys(), self.found.keys())
        for address, card in self.told.items():
            with self.subTest(address=address):
                found = self.found[address]
                self.assertFalse(found.lost)
                self.assertEqual(card.uncorrected, found.uncorrected)
                self.assertEqual(card.retirement_pending, found.retirement_pending)
                self.assertEqual(card.remapping_pending, found.remapping_pending)
                self.assertEqual(card.remapping_failed, found.remapping_failed)
                if not card.mig:
                    self.assertIn(found.fabric_state, _FABRIC[card.fabric])
                if card.recovery is not None:
                    needs_none = card.recovery.strip() == _NO_ACTION
                    self.assertEqual(needs_none, not found.recovery_action, card.recovery)
                verdict = health_verdict.of_nvml(found)
                self.assertEqual(_ailing(card), verdict is not None, verdict)

    def test_bus(self) -> None:
        for gpu in machine.gpus():
            self.assertEqual((), bus_health.silent(gpu, machine.ROOTS))
            machine.keep(f"bus-{gpu.address}.txt", str(bus_health.bus_errors(gpu, machine.ROOTS)))

    def test_use(self) -> None:
        used = nvml.usage(self.told, machine.TIMEOUT_S)
        self.assertEqual(self.told.keys(), used.keys())
        for address, card in self.told.items():
            found = used[address]
            assert card.memory_mib and card.used_mib is not None
            assert found.memory_total and found.memory_used is not None
            self.assertAlmostEqual(card.memory_mib, found.memory_total >> 20, delta=1)
            self.assertAlmostEqual(card.used_mib, found.memory_used >> 20, delta=_USED_MIB)
            self.assertLess(found.memory_used, found.memory_total)

    def test_modes(self) -> None:
        """What one card is asked for alone: it is there, and in the mode that nvidia-smi says."""
        found = nvml.modes(self.told, machine.TIMEOUT_S)
        self.assertEqual(self.told.keys(), found.keys())
        for address, card in self.told.items():
            self.assertEqual(bool(card.mig), bool(found[address].mig))
        machine.keep("modules.txt", str(nvml.modules(self.told, machine.TIMEOUT_S)))


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
                found = gpu_instances.instances(known)
                ids = tuple((each.gpu_instance, each.compute_instance) for each in found)
                self.assertEqual(card.instances, ids)
                told = machine.facts()[address].mig
                self.assertEqual(bool(card.mig), told is not None)
                parts = [(each.gpu_instance, each.compute_instance) for each in told or ()]
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
        for each in known:
            path = f"gpu{gpu}/gi{each.gpu_instance}"
            if each.compute_instance is not None:
                path += f"/ci{each.compute_instance}"
            self.assertEqual(minors[f"{path}/access"], each.minor)


class LinksTest(unittest.TestCase):
    def test_counts(self) -> None:
        """As many links are up as ``nvidia-smi nvlink -s`` lists; a card alone has no peer."""
        cards = nvml.read(nvml.run([], machine.TIMEOUT_S), "gpus")
        for address, told in cards.items():
            with self.subTest(address=address):
                command = ["nvidia-smi", "nvlink", "-s", "-i", str(address)]
                # Of a card whose links are all down it says so, and may fail.
                text = machine.said(f"nvlink-{address}.txt", command, may_fail=True).decode()
                self.assertEqual(len(_LINK.findall(text)), len(told["nvlinks"]))

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
