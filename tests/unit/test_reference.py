# SPDX-License-Identifier: Apache-2.0
"""The reference has every word, trait, notification, metric, check and command of the code, and
none that is not there. Options are generated (``show-options``)."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import tomllib
import unittest
from collections.abc import Iterable

from nova_gpu.api import extra_specs
from nova_gpu.cmd import arguments, metrics, status
from nova_gpu.core import events, mistakes, names
from tools.novalab import guide
from tools.novalab.page import DOTS

ROOT = pathlib.Path(__file__).parents[2]
DOC = ROOT / "doc/source"


def read(*pages: str) -> str:
    return "\n".join((DOC / f"{each}.rst").read_text() for each in pages)


def first_cells(text: str, pattern: str) -> set[str]:
    """The literals of that form at the beginning of a line"""
    return set(re.findall(rf"^(?:``)?({pattern})(?:``)?(?=[ ,]|$)", text, re.MULTILINE))


def commands(parser: argparse.ArgumentParser) -> Iterable[str]:
    nested = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not nested:
        yield ""
    for each in nested:
        for name, below in each.choices.items():
            yield from (f"{name} {rest}".strip() for rest in commands(below))


def openstack_commands() -> set[str]:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {each.replace("_", " ") for each in points["openstack.gpu.v1"]}


def nova_gpu_commands() -> list[str]:
    parser = argparse.ArgumentParser()
    arguments.add_commands(parser.add_subparsers())
    return list(commands(parser))


class ReferenceTest(unittest.TestCase):
    def test_extra_specs(self) -> None:
        page = read("user/extra-specs")
        self.assertEqual(
            {*mistakes.WORDS, "resources:PGPU", "resources:VGPU", "trait:..."},
            first_cells(page, r"[a-z_:]+[A-Z.]*(?=`` )"),
        )
        judged = {each.name for each in extra_specs.register()}
        self.assertEqual(set(mistakes.WORDS), judged)

    def test_traits(self) -> None:
        page = read("admin/configuration", "admin/vgpu")
        for name, prefix in vars(names).items():
            if name.startswith("TRAIT_"):
                self.assertIn(f"``{prefix}", page)

    def test_notifications(self) -> None:
        page = read("reference/notifications")
        self.assertEqual(
            {str(each) for each in events.EventType}, first_cells(page, r"gpu\.[a-z_]+")
        )
        for each in events.EventType:
            priority = "ERROR" if each.is_error else "INFO"
            self.assertRegex(page, rf"(?m)^{each} +{priority} ")
        fields = {each.name for each in dataclasses.fields(events.Event)} - {"type"}
        payload = page.partition("value\n")[2].partition("For example")[0]
        self.assertEqual(fields, first_cells(payload, "[a-z_]+"))
        self.assertIn(f'"{events.VERSION}"', page)

    def test_metrics(self) -> None:
        rows = {}
        for line in read("admin/metrics").splitlines():
            if match := re.match(r"``(nova_gpu_[a-z_]+)`` *(.{0,37})", line):
                rows[match[1].removesuffix("_total")] = match[2]
        told = {**metrics.GAUGES, **metrics.COUNTERS, **metrics.SUMMARIES}
        self.assertEqual(set(told), {each.removesuffix("_total") for each in rows})
        for name, (_, labels) in told.items():
            for label in labels[:3]:
                self.assertIn(label, rows[name], name)

    def test_checks(self) -> None:
        page = read("reference/nova-gpu-status")
        for name, _ in status.Checks._upgrade_checks:
            self.assertRegex(page, rf"(?m)^{re.escape(name)} ")

    def test_openstack_commands(self) -> None:
        page = read("reference/openstack-commands")
        there = openstack_commands()
        shown = re.findall(r"``(gpu(?: [a-z]+)+)", page)
        self.assertEqual(there, set(shown) & there)
        self.assertEqual(set(), {each for each in shown if not each.startswith(tuple(there))})

    def test_nova_gpu_commands(self) -> None:
        page = read("reference/nova-gpu")
        found = nova_gpu_commands()
        self.assertGreater(len(found), 8)
        for each in found:
            self.assertRegex(page, rf"``{each}[ `]")

    def test_each_command_has_an_example_that_is_run(self) -> None:
        """By ``tools/lab guide``; one whose output nobody looks at is none."""
        shown = {
            command.text.replace("/opt/nova/bin/", ""): command.output
            for path in guide.PAGES
            for block in guide.blocks_of(path)
            for command in block.commands
        }
        wanted = [f"openstack {each}" for each in sorted(openstack_commands())]
        wanted += [f"nova-gpu {each}" for each in nova_gpu_commands()]
        for each in ("nova-gpu-status upgrade check", *wanted):
            outputs = [shown[text] for text in shown if f"{text} ".startswith(f"{each} ")]
            self.assertTrue(any({*each} - {DOTS} for each in outputs), each)
