# SPDX-License-Identifier: Apache-2.0
"""The readers over text that real machines printed (tests/recorded)."""

from __future__ import annotations

import pathlib
import re
import shutil
from typing import Any

from oslotest import base

from lab.record import recording
from nova_gpu.core import exception, health_verdict, names
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host import products
from nova_gpu.host.container import cdi
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import kernel_log, nvml, proc
from nova_gpu.host.pci import direct_links, sysfs
from nova_gpu.host.vgpu import mdev, sriov
from tests.fixtures import nvml as machines
from tests.fixtures import pci, recorded
from tests.fixtures import vgpu as vgpus
from tests.fixtures.bases.recorded import _CARD, RecordedTestCase


class TestSources(base.BaseTestCase):
    def test_nobody_is_named(self) -> None:
        """UUIDs, serial numbers and the numbers of processes are replaced."""
        for path in recorded.FOLDER.rglob("*"):
            text = path.read_text() if path.is_file() else ""
            for uuid in re.findall(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]+", text):
                self.assertEqual("GPU-00000000-0000-0000-0000-000000000000", uuid, path.name)
            for pid in re.findall(r"pid=(\d+)", text):
                self.assertEqual("1234", pid, path.name)
            self.assertIsNone(re.search(r"\b[0-9]{13,}\b", text), path.name)


class TestKernelLog(RecordedTestCase):
    def test_xids(self) -> None:
        for record in self.each("xids"):
            read = record["read"]
            expected = (
                [kernel_log.Xid(**{**read, "address": PciAddress.parse(read["address"])})]
                if read
                else []
            )
            self.assertEqual(expected, kernel_log.parse([record["line"]]))


class TestInformation(RecordedTestCase):
    def test_minor_and_model(self) -> None:
        for record in self.each("information"):
            address, read = record["address"], record["read"]
            self.assertEqual((read["model"], read["minor"]), self.read(address, record["text"]))
            # The driver has that line once it has asked the card (nv-procfs.c).
            lines = record["text"].splitlines(keepends=True)
            without = "".join(line for line in lines if not line.startswith("GPU UUID:"))
            self.assertEqual((read["model"], read["minor"]), self.read(address, without))

    def read(self, address: str, text: str) -> tuple[str | None, int | None]:
        """Of a card whose file has *text*, model and minor"""
        host = self.host(address)
        (host.roots.proc / f"driver/nvidia/gpus/{address}/information").write_text(text)
        (card,) = recording.record(host.gpus(), host.roots)["gpus"]
        self.assertNotIn("GPU-", str(card))
        minor = gpu_instances.gpu_minor(PciAddress.parse(address), host.roots)
        self.assertEqual(minor, card.get("minor"))
        return card["model"], minor

    def test_versions(self) -> None:
        for record in self.each("versions"):
            host = self.host()
            (host.roots.proc / "driver/nvidia/version").write_text(f"{record['line']}\n")
            self.assertEqual(record["read"], proc.version(host.roots))

    def test_mode_of_nodes(self) -> None:
        for record in self.each("params"):
            host = self.host()
            (host.roots.proc / "driver/nvidia/params").write_text(record["text"])
            self.assertEqual(record["read"], proc.device_file_mode(host.roots))


class TestBars(RecordedTestCase):
    def test_regions(self) -> None:
        for record in self.each("bars"):
            host = self.host()
            (host.path(_CARD) / "resource").write_text(recorded.resource(record["regions"]))
            high = sysfs.high_bars(PciAddress.parse(_CARD), host.roots)
            self.assertEqual(record["high"], [size >> 20 for size in high])
            # The largest is what a record says is mapped.
            (card,) = recording.record(host.gpus(), host.roots)["gpus"]
            self.assertEqual(max(record["high"]), card["mapped_mib"])


class TestKFD(RecordedTestCase):
    def test_links(self) -> None:
        for record in self.each("kfd"):
            root = self.folder()
            nodes = root / "class/kfd/kfd/topology/nodes"
            for number, properties in record["nodes"].items():
                self._write(nodes / str(number), properties)
            for number, link in enumerate(record["links"]):
                self._write(nodes / f"{link['node_from']}/io_links/{number}", link)
            links = direct_links.of_xgmi(root)
            self.assertEqual(
                record["read"],
                {str(card): [str(link.peer) for link in links[card]] for card in links},
            )

    def _write(self, folder: pathlib.Path, properties: dict[str, int]) -> None:
        lines = [f"{name} {value}\n" for name, value in properties.items()]
        pci.write(folder / "properties", "".join(lines))


class TestMediated(RecordedTestCase):
    def test_types(self) -> None:
        for record in self.each("mediated"):
            host = self.host(product_id="1b38")
            listed = record["types"]
            types = [
                vgpus.Type(id_, entry.get("name"), entry["description"], entry["available"])
                for id_, entry in listed.items()
            ]
            vgpus.add_types(host, _CARD, types)
            device = str(host.path(_CARD))
            self.assertEqual(sorted(listed), list(mdev.types(device)))
            for id_, entry in listed.items():
                facts = mdev.facts(device, id_)
                assert facts is not None
                self.assertEqual(entry["available"], mdev.available(device, id_))
                self.assertEqual(self._told(entry["description"]), self._read(facts), id_)
                self._compare_with_name(facts)

    def _told(self, description: str) -> dict[str, Any]:
        """The numbers of a description, read in another way than the reader's"""
        numbers = [int(text) for text in re.findall(r"\d+", description)]
        if "framebuffer" in description:
            heads, _, memory, across, down, most = numbers
            return {"memory": memory, "heads": heads, "size": (across, down), "most": most}
        low, high, _, across, down, _ = numbers
        return {"memory": low + high, "heads": None, "size": (across, down), "most": None}

    def _read(self, facts: VGPUType) -> dict[str, Any]:
        return {
            "memory": facts.memory_mib,
            "heads": facts.heads,
            "size": facts.resolution,
            "most": facts.per_card,
        }

    def _compare_with_name(self, facts: VGPUType) -> None:
        """What the name tells is what the driver says of it, or nothing."""
        if facts.name is None:
            return
        by_name = sriov.named(facts.id, facts.name).memory_mib
        self.assertIn(by_name, (facts.memory_mib, None))
        if re.search(r"-\d+[QAC]$", facts.name):
            self.assertIsNotNone(by_name)


class TestTyped(RecordedTestCase):
    def test_listings(self) -> None:
        for record in self.each("typed"):
            if "text" not in record:
                continue
            host = self.host(product_id="26b1")
            vgpus.set_profiles(host, _CARD, {})
            device = host.path(_CARD)
            (device / "nvidia/creatable_vgpu_types").write_text(record["text"])
            profiles = sriov.profiles(str(device))
            assert profiles is not None
            read = {id_: sriov.named(id_, name).memory_mib for id_, name in profiles.names.items()}
            expected = {f"nvidia-{id_}": memory for id_, memory in record["memory_mib"].items()}
            self.assertEqual(expected, read)

    def test_names(self) -> None:
        for record in self.each("typed"):
            for id_, entry in record.get("names", {}).items():
                expected = VGPUType(
                    f"nvidia-{id_}",
                    entry["name"],
                    memory_mib=entry["memory_mib"],
                    slices=entry.get("slices"),
                )
                self.assertEqual(expected, sriov.named(f"nvidia-{id_}", entry["name"]))


class TestNames(RecordedTestCase):
    def test_memory_and_slices(self) -> None:
        """Only those of types for games tell none."""
        for record in self.each("names"):
            for product, endings in record["names"].items():
                for ending in endings.split():
                    *slices, memory = map(int, re.findall(r"(?:^|-)(\d+)", ending))
                    expected = {"memory_mib": 1024 * memory, "slices": next(iter(slices), None)}
                    if ending[-1].isdecimal() and not ending.endswith("B4"):
                        expected = {}
                    name = f"{product}-{ending}"
                    self.assertEqual(VGPUType("1", name, **expected), sriov.named("1", name))

    def test_each_stays_itself(self) -> None:
        """No two names of a vendor's table are one word, and so one trait."""
        types = {
            f"{product}-{ending}"
            for record in self.each("names")
            for product, endings in record["names"].items()
            for ending in endings.split()
        }
        models = {product.name for product in products.table().values() if product.name}
        models.remove("GK208-INT")  # "GK208 INT", of another sample
        for table in (types, models):
            self.assertGreater(len(table), 50)
            words: dict[str | None, set[str]] = {}
            for name in table:
                words.setdefault(names.word(name), set()).add(name)
            self.assertEqual([], [group for group in words.values() if len(group) > 1])
            self.assertEqual(len(table), len({names.vgpu_type_trait(name) for name in table}))


class TestNvml(RecordedTestCase):
    def test_what_the_probe_made_of_it(self) -> None:
        library = self.useFixture(machines.Library())
        for record in self.each("nvml"):
            answers, read = record["answers"], record["read"]
            library.say_of_card(answers)
            (address,) = facts = nvml.query(60)
            fields = {
                **read["facts"],
                "compute_capability": tuple(read["facts"]["compute_capability"]),
            }
            self.assertEqual({address: nvml.NvmlFacts(**fields)}, facts)
            self.assertEqual(PciAddress.parse(answers[""]), address)
            self.assertEqual(
                {address: health_verdict.NvmlHealth(**read["health"])}, nvml.health(facts, 60)
            )
            self.assertIsNone(health_verdict.of_nvml(health_verdict.NvmlHealth(**read["health"])))
            self.assertEqual({address: nvml.Usage(**read["usage"])}, nvml.usage(facts, 60))


class TestCDI(RecordedTestCase):
    def test_files(self) -> None:
        for record in self.each("cdi"):
            path = self.folder() / record["file"]
            shutil.copyfile(recorded.FOLDER / "cdi" / record["file"], path)
            path.chmod(0o644)
            try:
                devices = cdi.load(path, path.stat().st_uid)
            except exception.InvalidCDISpec as error:
                self.fail(f"a file that a vendor's tool wrote is refused: {error}")
            self.assertEqual(
                record["read"], {device.name: self._edits(device) for device in devices}
            )

    def _edits(self, device: cdi.CdiDevice) -> dict[str, Any]:
        return {
            "nodes": [node.path for node in device.edits.nodes],
            "mounts": len(device.edits.mounts),
            "links": [list(link) for link in device.edits.links],
        }


class TestNVLinks(RecordedTestCase):
    def test_widths(self) -> None:
        """What nvidia-smi topo -m says of two cards, by what the library says of each link"""
        for record in self.each("nvlinks"):
            cards = [
                machines.Card(
                    *(address, "NVIDIA H100", 9, 81559, "9.0"),
                    links=[
                        machines.Link(peer, self._kind(peer, record))
                        for peer, count in peers.items()
                        for _ in range(count)
                    ],
                )
                for address, peers in record["cards"].items()
            ]
            self.useFixture(machines.Library(*cards))
            facts = nvml.query(30.0)
            self.assertEqual(set(record["cards"]), {str(address) for address in facts})
            for address, fact in facts.items():
                others = set(record["cards"]) - {str(address)}
                widths = {str(link.peer): link.width for link in fact.links}
                self.assertEqual(dict.fromkeys(others, record["width"]), widths)

    def _kind(self, peer: str, record: dict[str, Any]) -> int:
        return machines.SWITCH if peer in record["switches"] else machines.GPU
