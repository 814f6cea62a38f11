# SPDX-License-Identifier: Apache-2.0
"""``lab.record``: a host that is recorded and built anew is the same."""

from __future__ import annotations

import pathlib

import fixtures
import yaml

from lab.record import __main__ as record
from lab.record import recording
from nova_gpu.core.model import GPU
from nova_gpu.host.pci import discovery as pci_discovery
from nova_gpu.host.pci import selection
from nova_gpu.virt.inventory import discovery
from tests.fixtures import adopted, hosts, nodes
from tests.fixtures import nvml as machines
from tests.fixtures.bases import commands as base

_ALL = selection.Selection.parse(["10de", "1002", "8086"], [], [])


class RecordTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.virt_type("lxc")

    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def found(self, host: hosts.Host) -> tuple[GPU, ...]:
        return pci_discovery.discover(host.roots, _ALL, {}, dict)

    def use_library(self, *cards: machines.Card) -> machines.Library:
        self.config.config(nvml=True, group="gpu")
        library: machines.Library = self.useFixture(machines.Library(*cards))
        return library

    def test_every_machine_of_the_tests(self) -> None:
        names = sorted(path.stem for path in hosts.MACHINES.glob("*.yaml"))
        self.assertGreater(len(names), 5)
        for name in names:
            with self.subTest(name):
                host = hosts.build(name, self.folder(), nodes.Nodes.FILES)
                gpus = self.found(host)
                recorded = recording.record(gpus, host.roots)
                path = self.folder() / "recorded.yaml"
                path.write_text(yaml.safe_dump(recorded))
                again = hosts.build(path, self.folder(), nodes.Nodes.FILES)
                self.assertEqual(gpus, self.found(again))
                self.assertEqual(recorded, recording.record(gpus, again.roots))

    def test_a_record_that_is_not_taken(self) -> None:
        hosts.build("h200-8", self.root, nodes.Nodes.FILES)
        self.use_library(*machines.h200())
        text = self.printed(0, lambda: record.show(discovery.Discovery()))
        uuid = "GPU-6cf00fa7-59ac-16f2-3e83-d24ccdc56f84"
        for wrong, why in (
            (text.replace("NVIDIA H200", uuid), "UUID"),
            (text.replace("NVIDIA H200", "1654525079344"), "serial number"),
            (text.replace("gpus:", "cards:"), "no list of gpus"),
            (text.replace("bridges:", "roads:").replace("devices:", "roads:"), "roads"),
            (text.replace("mapped_mib: 256", "mapped_mib: 8"), "gpus that are built"),
            (text.replace("minor: 3", "minor: 3, minor: ["), "no YAML"),
        ):
            self.assertNotEqual(text, wrong, why)
            path = self.folder() / "sent.yaml"
            path.write_text(wrong)
            with self.subTest(why):
                refused = self.assertRaises(
                    adopted.Refused, adopted.adopt, path, "sent", self.folder()
                )
                self.assertIn(why, str(refused))
        path.write_text(text)
        there = self.assertRaises(adopted.Refused, adopted.adopt, path, "h200-8")
        self.assertIn("already", str(there))

    def test_where_modules_were_built_is_not_told(self) -> None:
        host = hosts.build("fermi-8", self.root, nodes.Nodes.FILES)
        self.config.config(nvml=False, group="gpu")
        (host.roots.proc / "driver/nvidia/version").write_text(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build"
            "  (root@compute-of-a-customer)  Fri Jul  3 11:27:00 AM UTC 2026\n"
        )
        text = self.printed(0, lambda: record.show(discovery.Discovery()))
        self.assertIn("# NVIDIA UNIX Open Kernel Module for x86_64  595.71.05\n", text)
        self.assertNotIn("customer", text)
