# SPDX-License-Identifier: Apache-2.0
"""Whether a card is the one that was tested, and as it was then"""

from __future__ import annotations

import pathlib
import tempfile
import unittest

from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import files
from nova_gpu.host.state.quarantine import Seen
from nova_gpu_cardlife.core.gate import Record
from nova_gpu_cardlife.host import records
from nova_gpu_cardlife.host.records import Tested
from tests.fixtures import cards, hosts, pci

CARD, OTHER = "0000:3b:00.0", "0000:af:00.0"
WHERE = (CARD, OTHER)
THEN = {"driver": "580.82.09", "firmware": "96.00"}
REPLACED = "another card may have taken its place"


def seen(identity: str | None = None, where: tuple[str, ...] = WHERE, boot: str = "one") -> Seen:
    return Seen({"pcie": identity} if identity else {}, where, boot)


class ChangedTest(unittest.TestCase):
    def test_what_has_changed(self) -> None:
        card = cards.card(CARD)
        key = card.product.key
        for product, before, now, versions, expected in (
            (key, seen("a"), seen("a", (CARD,), "two"), THEN, None),
            (key, seen("a"), seen("b"), THEN, REPLACED),
            ("10de:1091", seen("a"), seen("a"), THEN, REPLACED),
            (key, seen(), seen(boot="two"), THEN, None),
            (key, seen(), seen(where=(CARD,)), THEN, None),
            (key, seen(), seen("a", (CARD,), "two"), THEN, REPLACED),
            (key, seen(), seen(where=(*WHERE, "0000:d8:00.0"), boot="two"), THEN, REPLACED),
            (key, seen("a"), None, THEN, "it may have changed: the host does not report its"),
            (key, seen("a"), seen("a"), {}, None),
            (key, seen("a"), seen("a"), {"driver": "580.82.09"}, None),
            (
                key,
                seen("a"),
                seen("a"),
                THEN | {"firmware": "97.00"},
                "its firmware changed from 96",
            ),
            (
                key,
                seen("a"),
                seen("a"),
                {"driver": "590.10"},
                "its driver changed from 580.82.09 to",
            ),
        ):
            tested = Tested(Record("PASS", "", 1.0), product, THEN, before)
            with self.subTest(before=before, now=now, versions=versions):
                changed = records.changed(tested, card, now, versions)
                self.assertEqual(expected, changed and changed[: len(expected or "")])

    def test_tested_before_its_driver_had_it(self) -> None:
        card = cards.card(CARD)
        for state, expected in (("PASS", "its driver has it"), ("UNTESTED", None)):
            tested = Tested(Record(state, "", 1.0), card.product.key, {}, seen("a"))
            self.assertIsNone(records.changed(tested, card, seen("a"), {}))
            changed = records.changed(tested, card, seen("a"), THEN)
            self.assertEqual(expected, changed and changed[: len(expected or "")])


class FilesTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.address = pathlib.Path(folder.name), PciAddress.parse(CARD)

    def test_written_and_read(self) -> None:
        self.assertIsNone(records.read(self.root, self.address))
        tested = Tested(
            Record("WARNING", "a fan is slow", 12.5, "reset"), "10de:2335", THEN, seen("a")
        )
        records.write(self.root, self.address, tested)
        self.assertEqual(tested, records.read(self.root, self.address))
        records.remove(self.root, self.address)
        records.remove(self.root, self.address)
        self.assertIsNone(records.read(self.root, self.address))

    def test_what_is_no_record(self) -> None:
        path = files.of_card(self.root, self.address)
        whole = '{"state": "PASS", "text": "", "since": 1, "product": "", "versions": {}, "seen": '
        own = '{"identity": {}, "addresses": [], "boot_id": ""}}'
        path.write_text(whole + own)
        self.assertTrue(records.read(self.root, self.address))
        for text in (
            *("", "{}", "[]", "null", whole, f"{whole}null}}", f"{whole}{{}}}}"),
            *((whole + own).replace("PASS", state) for state in ("", "pass", "OK")),
            *(
                (whole + own).replace("1", since)
                for since in ("null", '"soon"', "[]", "1e17", "-1")
            ),
            (whole + own).replace('"text": ""', '"text": 7'),
            (whole + own).replace('"text": ""', '"text": "", "asks": "dance"'),
            (whole + own).replace('"versions": {}', '"versions": []'),
        ):
            path.write_text(text)
            with self.subTest(text):
                self.assertRaises(ValueError, records.read, self.root, self.address)

    def test_versions(self) -> None:
        host = hosts.Host(self.root)
        host.add_gpu(CARD, "10de", "2335", driver="nvidia")
        host.add_gpu(OTHER, "1002", "74a1", driver="amdgpu")
        folder = self.root / "proc/driver/nvidia"
        version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.09  Tue\n"
        pci.write(folder / "version", version)
        pci.write(self.root / "sys/module/amdgpu/version", "6.10.5")
        pci.write(self.root / f"sys/bus/pci/devices/{OTHER}/vbios_version", "113-M3000100-102")
        for bios, firmware in (("??.??.??.??.??", {}), ("96.00.89", {"firmware": "96.00.89"})):
            pci.write(folder / f"gpus/{CARD}/information", f"Model: H200\nVideo BIOS: \t {bios}\n")
            one, other = sorted(host.gpus(), key=lambda gpu: gpu.address)
            self.assertEqual({"driver": "580.82.09", **firmware}, records.versions(one, host.roots))
            self.assertEqual(
                {"driver": "6.10.5", "firmware": "113-M3000100-102"},
                records.versions(other, host.roots),
            )
        host.bind(CARD, "vfio-pci")
        one, _ = sorted(host.gpus(), key=lambda gpu: gpu.address)
        self.assertNotIn("driver", records.versions(one, host.roots))
