# SPDX-License-Identifier: Apache-2.0
"""What the properties found, by name: each of these once raised, hung, or was offered."""

from __future__ import annotations

import os
import pathlib

import fixtures
from lxml import etree
from oslotest import base

from nova_gpu.core import exception, model
from nova_gpu.core.flavor import request_group
from nova_gpu.core.scheduling import stats
from nova_gpu.host import nodes, products
from nova_gpu.host.container import cdi
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.state import files, former_drivers
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.usage import domains
from tests.fixtures import damage, hosts, kernel
from tests.fixtures.bases import fuzz

_UID = os.getuid()


class FoundTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.build("two-architectures", self.root / "host")
        self.card = self.host.gpus()[0]

    def cdi_refused(self, content: str, suffix: str = ".yaml") -> None:
        path = self.root / f"spec{suffix}"
        path.write_text(content)
        with fuzz.bounded_memory():
            self.assertRaises(exception.InvalidCDISpec, cdi.load, path, _UID)

    def test_yaml_whose_values_are_not_what_they_claim(self) -> None:
        for claim in ("!!bool maybe", "!!int ''", "!!timestamp soon"):
            self.cdi_refused(f"cdiVersion: {claim}")

    def test_aliases_that_unfold_to_more_than_there_is_memory(self) -> None:
        lines = ["cdiVersion: &a0 [x]"]
        lines += [f"k{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(20)]
        self.cdi_refused("\n".join([*lines, "kind: *a20", "devices: []"]))

    def test_half_a_character_in_a_cdi_file(self) -> None:
        edits = '{"mounts": [{"hostPath": "/\\ud800", "containerPath": "/x"}]}'
        device = f'{{"name": "a", "containerEdits": {edits}}}'
        self.cdi_refused(
            f'{{"cdiVersion": "0.6.0", "kind": "a/b", "devices": [{device}]}}', ".json"
        )

    def test_a_huge_cdi_file(self) -> None:
        path = self.root / "huge.json"
        with damage.done(path, damage.Harm(damage.Kind.HUGE)), fuzz.bounded_memory():
            self.assertRaises(exception.InvalidCDISpec, cdi.load, path, _UID)

    def test_a_folder_with_the_name_of_a_cdi_file_leaves_nothing_open(self) -> None:
        (self.root / "folder.json").mkdir()
        before = fuzz.open_files()
        self.assertRaises(exception.InvalidCDISpec, cdi.load, self.root / "folder.json", _UID)
        self.assertEqual(before, fuzz.open_files())

    def test_a_drivers_file_that_is_no_text(self) -> None:
        information = self.host.roots.proc / f"driver/nvidia/gpus/{self.card.address}/information"
        for content in (b"Device Minor: \xff", b"Device Minor: " + b"9" * 5000):
            information.write_bytes(content)
            self.assertEqual((), nodes.own_nodes(self.card, self.host.roots))

    def test_ids_of_more_than_four_digits(self) -> None:
        for content in ("0x12345", "-0x10de"):
            (self.host.path(str(self.card.address)) / "device").write_text(content)
            self.assertNotIn(self.card.address, [g.address for g in self.host.gpus()])

    def test_another_name_for_the_same_function(self) -> None:
        address = str(self.card.address)
        (self.host.devices / f"0000{address}").symlink_to(self.host.path(address))
        self.assertEqual(1, [g.address for g in self.host.gpus()].count(self.card.address))

    def test_attributes_that_are_pipes(self) -> None:
        path = self.host.path(str(self.card.address)) / "class"
        with damage.done(path, damage.Harm(damage.Kind.FIFO)):
            self.assertNotIn(self.card.address, [g.address for g in self.host.gpus()])

    def test_a_comment_in_our_metadata(self) -> None:
        gpus = guest_config.GuestMetaGPUs((self.card.address,)).format_dom()
        gpus.append(etree.Comment("whose?"))
        text = etree.tostring(gpus, encoding="unicode")
        named = domains.gpus_in(
            f"<domain><metadata>{text}</metadata></domain>", domains.Parts({}, {})
        )
        self.assertEqual({self.card.address}, named)

    def test_a_domain_that_cannot_be_read_is_not_one_without_gpus(self) -> None:
        address = "<address domain='0x' bus='x'/>"
        hostdev = f"<hostdev type='pci'><source>{address}</source></hostdev>"
        for xml in ("<domain", f"<domain><devices>{hostdev}</devices></domain>"):
            self.assertRaises(
                exception.DomainsUnreadable, domains.gpus_in, xml, domains.Parts({}, {})
            )

    def test_stats_that_are_nested_too_deep(self) -> None:
        self.assertRaises(exception.InvalidStats, stats.loads, "[" * 100_000)

    def test_an_answer_about_nvml_of_other_types(self) -> None:
        card = '{"address": "0000:04:00.0", "name": 5, "nvlinks": [], "memory": null'
        rest = ', "architecture": 9, "compute_capability": [1e999, 0], "uuid": ""}'
        good = rest.replace("1e999", "9").replace('"uuid"', '"mig": null, "uuid"')
        fraction = card.replace("5", '"NVIDIA H200"').replace("null", "1.0")
        self.assertRaises(nvml.NoAnswer, nvml._parse, b"[" * 100_000)
        whole = fraction.replace("1.0", "1048576")
        for text, memory in ((card + rest, None), (fraction + good, None), (whole + good, 1)):
            (facts,) = nvml._parse(f'{{"gpus": [{text}]}}'.encode()).values()
            self.assertEqual(memory, facts.memory_mib)

    def test_a_space_that_is_none_to_int(self) -> None:
        for word in ("resources:PGPU", "resources1:VGPU"):
            resource_class = word.partition(":")[2]
            (group,) = request_group.parse({word: " 2\n"}, resource_class).values()
            self.assertEqual(2, group.count)
            self.assertRaises(
                *(exception.InvalidExtraSpec, request_group.parse),
                *({word: "2\x1f"}, resource_class),
            )

    def test_more_memory_than_python_takes_for_a_number(self) -> None:
        line = f"10de:2335 memory_mib={'9' * 5000}"
        self.assertRaises(exception.InvalidOption, products.parse_overrides, [line])

    def test_a_former_driver_that_is_no_name(self) -> None:
        kernel.boot(self.host, "1")
        folder, card = self.root / "gpu-bindings", model.PciAddress(0, 4, 0, 0)
        former_drivers.save(folder, card, {card: former_drivers.Former("a")}, self.host.roots)
        (file,) = folder.iterdir()
        for driver in ('""', "0", "false", "[]"):
            file.write_text(f'{{"boot_id": "1", "functions": {{"{card}": {driver}}}}}')
            self.assertRaises(files.Untrusted, former_drivers.load, folder, card, self.host.roots)
        file.write_bytes(b"\xff")
        self.assertRaises(files.Untrusted, former_drivers.load, folder, card, self.host.roots)
