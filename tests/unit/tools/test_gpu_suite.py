# SPDX-License-Identifier: Apache-2.0
"""The suite of machines with a card, on generated ones: where nvidia-smi and the readers agree all
of it passes, and where they do not the test of that fails.
"""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from tests.fixtures import hosts, nodes, nvidia, pci
from tests.fixtures import nvml as machines
from tests.fixtures.bases import commands
from tests.gpu import machine, smi, test_discovery, test_nvml
from tools import environments, suites

_COMPARED = (
    test_discovery.SmiTest,
    test_nvml.HealthTest,
    test_nvml.InstancesTest,
    test_nvml.LinksTest,
)
_ARCHITECTURES = {7: "Ampere", 9: "Hopper"}
_MAPPED_MIB = 256
_HEALTHY = {"ecc.1.0": "0", "ecc.1.1": "0", "remapped": "0 0 0 0"}
_LAYOUT = ((1, 0), (9, 0), (10, 0))


class GPUSuiteTest(base.BaseTestCase):
    def machine(self, *cards: machines.Card, mig: Sequence[tuple[int, int]] = ()) -> None:
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path, nodes=nodes.Nodes.FILES)
        cards = tuple(dataclasses.replace(each, more=_HEALTHY) for each in cards)
        for card in cards:
            device = "20b0" if card.architecture == 7 else "2330"
            self.host.add_gpu(card.address, "10de", device, numa_node=0, mig=mig)
        table = self.host.roots.proc / "driver/nvidia-caps/mig-minors"
        pci.write(table, "".join(f"{line}\n" for line in _minors(mig)))
        self.library = self.useFixture(machines.Library(*cards))
        self.cards = {each.address: each for each in (_told(n, c) for n, c in enumerate(cards))}
        self.links = {PciAddress.parse(each.address): len(each.links) for each in cards}
        self.capability = {each.address: each.capability for each in cards}

    def said(self, name: str, command: Sequence[str], *, may_fail: bool = False) -> bytes:
        """What nvidia-smi prints of what is not in its XML"""
        if command[1] == "nvlink":
            count = self.links[PciAddress.parse(command[-1])]
            lines = [f"\t Link {number}: 26.562 GB/s" for number in range(count)]
            return "\n".join(["GPU 0: NVIDIA H100 80GB HBM3", *lines, ""]).encode()
        told = self.capability.items()
        return "".join(f"0000{address}, {text}\n" for address, text in told).encode()

    def failed(self) -> set[str]:
        """The tests of the suite that fail, by their names"""
        machine.facts.cache_clear()
        machine.all_gpus.cache_clear()
        loader = unittest.TestLoader()
        found = unittest.TestSuite(map(loader.loadTestsFromTestCase, _COMPARED))
        with (
            mock.patch.object(machine, "ROOTS", self.host.roots),
            mock.patch.object(machine, "smi_cards", lambda: self.cards),
            mock.patch.object(machine, "said", self.said),
        ):
            printed = io.StringIO()
            result = unittest.TextTestRunner(printed).run(found)
        self.assertGreater(result.testsRun, 12)
        self.assertEqual([], result.skipped)
        tests: Iterable[unittest.TestCase] = (test for test, _ in result.failures + result.errors)
        # Of a part of a test the test
        names = {getattr(test, "test_case", test).id().rpartition(".")[2] for test in tests}
        self.report = printed.getvalue()
        return names

    def changed(self, **facts: Any) -> None:
        """nvidia-smi says something else of the first card"""
        first, card = next(iter(self.cards.items()))
        self.cards = {**self.cards, first: dataclasses.replace(card, **facts)}

    def test_all_agree(self) -> None:
        for cards, mig in ((machines.h100()[:2], ()), (machines.a100_mig(), _LAYOUT)):
            with self.subTest(cards[0].name):
                self.machine(*cards, mig=mig)
                self.assertEqual(set(), self.failed(), self.report)

    def test_what_differs_fails(self) -> None:
        self.machine(*machines.h100()[:2])
        agreed = self.cards
        differences: tuple[tuple[dict[str, Any], set[str]], ...] = (
            ({"uuid": "GPU-1"}, {"test_products"}),
            ({"product_id": "2331"}, {"test_products"}),
            ({"name": "NVIDIA H200"}, {"test_products"}),
            ({"architecture": "Ampere"}, {"test_products"}),
            ({"memory_mib": 80000}, {"test_products", "test_use"}),
            ({"minor": 3}, {"test_nodes"}),
            ({"mapped_mib": 131072}, {"test_mapped_memory"}),
            ({"uncorrected": 3}, {"test_memory", "test_verdict"}),
            ({"remapping_failed": True}, {"test_memory", "test_verdict"}),
            ({"fabric": "In Progress"}, {"test_fabric_and_recovery", "test_verdict"}),
            ({"recovery": "Reset"}, {"test_fabric_and_recovery", "test_verdict"}),
            ({"mig": True, "instances": ((9, 0),)}, {"test_capabilities", "test_modes"}),
        )
        for facts, names in differences:
            with self.subTest(facts):
                self.cards = agreed
                self.changed(**facts)
                self.assertEqual(names, self.failed())


def _told(index: int, card: machines.Card) -> smi.Card:
    joined = (card.fabric or "").partition(" ")[0] == "3"
    return smi.Card(
        address=PciAddress.parse(card.address),
        product_id="20b0" if card.architecture == 7 else "2330",
        name=card.name,
        architecture=_ARCHITECTURES[card.architecture],
        uuid=nvidia.gpu_uuid(card.address),
        minor=index,
        memory_mib=card.memory_mib,
        used_mib=1,
        mapped_mib=_MAPPED_MIB,
        mig=card.mig is not None,
        instances=tuple((each.gpu_instance, each.compute_instance) for each in card.mig or ()),
        uncorrected=0,
        retirement_pending=None,
        remapping_pending=False,
        remapping_failed=False,
        fabric="Completed" if joined else None,
        recovery=None,
    )


def _minors(mig: Iterable[tuple[int, int]]) -> Iterable[str]:
    yield "config 1"
    for gi, ci in mig:
        yield f"gpu0/gi{gi}/access {nvidia.cap_minor(0, gi)}"
        yield f"gpu0/gi{gi}/ci{ci}/access {nvidia.cap_minor(0, gi, ci)}"


class ObstacleTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)

    def reason(self, on_path: str | None = "/usr/bin/nvidia-smi") -> str | None:
        with mock.patch.object(shutil, "which", lambda name: on_path):
            return machine.obstacle(self.host.roots)

    def test_no_card_of_nvidias(self) -> None:
        self.assertIn("there is none", self.reason() or "")
        self.host.add_gpu("0000:03:00.0", "1002", "744c")
        self.host.add_gpu("0000:04:00.0", "10de", "2330", driver="vfio-pci")
        self.assertIn("needs a real GPU that NVIDIA's driver holds", self.reason() or "")

    def test_nothing_to_compare_with(self) -> None:
        self.host.add_gpu("0000:04:00.0", "10de", "2330")
        self.assertIn("nvidia-smi", self.reason(on_path=None) or "")
        self.assertIsNone(self.reason())


class WithoutLibvirtTest(commands.CommandTestCase):
    def test_metrics(self) -> None:
        """The machine may have no libvirt: the commands say so, and the rest all the same."""
        stand_in = environments.ROOT / "tests/gpu/without_libvirt"
        path = os.pathsep.join([str(stand_in), str(environments.ROOT)])
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", path))
        hosts.Host(self.root, nodes=nodes.Nodes.FILES).add_gpu("0000:04:00.0", "10de", "2330")
        self.configure("lxc")
        done = self.nova_gpu("exporter", "--once")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("nova_gpu_libvirt_up 0.0", done.stdout)
        self.assertIn('nova_gpu_healthy{address="0000:04:00.0"} 1.0', done.stdout)
        self.assertIn("0000:04:00.0", self.nova_gpu("list").stdout)


class CommandTest(base.BaseTestCase):
    def test_skipped_without_a_card(self) -> None:
        """In a process, as ``tools/test gpu`` runs it"""
        if machine.obstacle() is None:
            self.skipTest("this machine has a real GPU")
        argv = [sys.executable, "-m", "tests.gpu"]
        done = subprocess.run(argv, cwd=environments.ROOT, capture_output=True, text=True)
        self.assertEqual(suites.SKIPPED, done.returncode, done.stderr)
        self.assertRegex(done.stdout, "(?m)^SKIP: needs a real GPU")
