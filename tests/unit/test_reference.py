# SPDX-License-Identifier: Apache-2.0
"""The reference has all that the code has. Its tables are made by oslo.config, cliff and
doc/ext/reference; here is what these are made of, and what is written by hand."""

from __future__ import annotations

import argparse
import io
import itertools
import pathlib
import re
import tomllib
import unittest
from types import SimpleNamespace
from typing import Any

import os_traits

from doc.ext.reference import commands, messages, traits
from lab.cloud import cli, guide
from lab.cloud.page import DOTS
from nova_gpu.core import exception, names
from nova_gpu.core.model import Product
from nova_gpu.core.placement import group_traits
from nova_gpu.core.vgpu.vgpu import VGPUType
from osc_gpu import command_list
from tests.fixtures import reasons
from tests.functional import sdk

ROOT = pathlib.Path(__file__).parents[2]
DOC = ROOT / "doc/source"
# With tables and commands, which are read slowly
WORDS_A_MINUTE = 140
WAY = ("install/index", "install/first-boot", "admin/passthrough", "user/extra-specs")


def read(*pages: str) -> str:
    return "\n".join((DOC / f"{page}.rst").read_text() for page in pages)


def openstack_commands() -> set[str]:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    return {name.replace("_", " ") for name in points["openstack.gpu.v1"]}


class TablesTest(unittest.TestCase):
    """Those of doc/ext/reference. Sphinx finds a name that there is not."""

    def test_every_trait_is_explained(self) -> None:
        """Those that there are names of, and those that groups get."""
        explained = [trait.prefix for trait in (*traits.TRAITS, *traits.VGPU_TRAITS)]
        named = [value for name, value in vars(names).items() if name.startswith("TRAIT_")]
        self.assertEqual(sorted(named), sorted(explained))
        product = Product("10de", "1bb3", "Tesla P4", "pascal", 7611, (6, 1))
        facts = VGPUType("nvidia-64", "GRID P4-2Q", 2048, 4, (1024, 768), 4)
        got = group_traits.of_group(
            product, "QEMU", (), near=("nic", "nvme")
        ) | group_traits.of_type(facts, frozenset(os_traits.get_traits()))
        of_sets = {f"{names.TRAIT_PARTITION}1_2", f"{names.TRAIT_FREE_MODULE}1"}
        got |= of_sets | {names.peer_access_trait()}
        got |= {names.trait(names.TRAIT_TOTAL, 8)}
        for prefix in explained:
            self.assertTrue([trait for trait in got if trait.startswith(prefix)], prefix)
        self.assertEqual([], [trait for trait in got if not trait.startswith(tuple(explained))])


class ReferenceTest(unittest.TestCase):
    def test_each_command_has_an_example_that_is_run(self) -> None:
        """By ``tools/lab guide``; one whose output nobody looks at is none."""
        shown = {
            command.text.replace("/opt/nova/bin/", ""): command.output
            for path in guide.PAGES
            for block in guide.blocks_of(path)
            for command in block.commands
        }
        wanted = [f"openstack {command}" for command in sorted(openstack_commands())]
        wanted += [command.parser.prog for command in commands.commands("nova-gpu")]
        for command in ("nova-gpu-status upgrade check", *wanted):
            outputs = [shown[text] for text in shown if f"{text} ".startswith(f"{command} ")]
            self.assertTrue(any({*output} - {DOTS} for output in outputs), command)

    def test_help_says_what_each_command_does(self) -> None:
        manager = SimpleNamespace(
            find_command=lambda words: (sdk._CreateServer, "", []), namespace="openstack.cli"
        )
        app: Any = SimpleNamespace(stdout=io.StringIO(), command_manager=manager)
        command_list.ListCommands(app, None).run(argparse.Namespace())
        for command in openstack_commands():
            self.assertRegex(app.stdout.getvalue(), rf"(?m)^{command}\b.*\n    [A-Z]")
        for_administrators = re.findall(
            r"(?m)^gpu ([a-z ]+)\b.*(?:\n    .*)*\. For\s+administrators$", app.stdout.getvalue()
        )
        wanted = ["capacity", "defrag", "drain", "flavor create", "group list", "host list"]
        wanted += [f"maintenance {verb}" for verb in ("create", "delete", "list")]
        self.assertEqual([*wanted, "plan", "preempt", "report"], for_administrators)


class WalkTest(unittest.TestCase):
    """``tools/lab guide --walk``; what its screens say is compared there."""

    def test_a_screen_before_tells_of_each_command(self) -> None:
        begin = (ROOT / "README.rst").read_text() + cli._NEXT.format(
            program="tools/lab", status=guide.STATUS
        )
        screens = dict.fromkeys(guide.PROMPTS, begin)
        stops = [command for block in guide.blocks_of(guide.WALK) for command in block.commands]
        own = sorted((f"openstack {name}" for name in openstack_commands()), key=len)
        for stop in stops:
            program, *words = stop.text.split()
            options = re.findall(r"--[a-z-]+", stop.text.replace("--help", ""))
            if program == "nova-gpu":
                verbs = itertools.takewhile(str.isalpha, words)
                wanted = [rf"(?m)^ *{verb}\b" for verb in verbs]
            elif prefixes := [
                command for command in own if f"{stop.text} ".startswith(f"{command} ")
            ]:
                wanted = [prefixes[-1].removeprefix("openstack ")]
            elif program == guide.STATUS:
                wanted = [f"{program} {stop.text.partition(' ')[2]}"]
            else:
                wanted, options = [], []  # OpenStack's own
            with self.subTest(stop.text):
                for pattern in (*wanted, *options):
                    self.assertTrue(re.search(pattern, screens[stop.prompt]), pattern)
            screens[stop.prompt] += "\n".join(("", *stop.output, ""))
        self.assertGreaterEqual(len(stops), 50)


def troubleshooting() -> str:
    """Return the words of all pages on troubleshooting."""
    pages = sorted(DOC.glob("admin/troubleshooting-*.rst"))
    return " ".join("".join(page.read_text() for page in pages).replace("``", " ").split())


class LengthTest(unittest.TestCase):
    """Pages are read in one go, and the way of an operator to the first guest in an hour."""

    def test_no_page_is_longer_than_25_minutes(self) -> None:
        for page in DOC.rglob("*.rst"):
            self.assertLess(len(page.read_text().split()), 25 * WORDS_A_MINUTE, page)

    def test_the_way_of_an_operator_takes_40_minutes(self) -> None:
        text = (ROOT / "README.rst").read_text() + read(*WAY)
        self.assertLess(len(text.split()), 40 * WORDS_A_MINUTE)


class TroubleshootingTest(unittest.TestCase):
    def test_a_fault_finds_its_entry_first(self) -> None:
        """What the page of the search does with a whole text (doc/ext/reference/messages.js)"""
        begin = "No valid host was found. Scheduling failed: "
        titles = re.findall(r"(?m)^``.*", read("admin/troubleshooting-requests"))
        entries = [text for title in titles for text in re.findall("``(.+?)``", title)]
        patterns = {messages.pattern(text): text for text in filter(messages.is_distinct, entries)}
        for text, entry in (
            (
                f"{begin}{exception.FINAL}no host has 9 GPUs: the most in one host is 8",
                "no host has 4",
            ),
            (
                f"{begin}5 GPUs (architecture kepler) asked for, at most 4 free in one host",
                "2 GPUs",
            ),
            (
                f"{begin}1 GPU asked for is free only on hosts that take no new instance: their "
                "compute service is down",
                "... their compute service is down",
            ),
            (
                f"{begin}quota refuses the instance its GPUs: quota of class:PGPU is 2",
                "quota refuses",
            ),
            ("There are not enough hosts available", "There are not"),
        ):
            fitting = [title for title in patterns if re.search(title, text, re.IGNORECASE)]
            first = patterns[max(fitting, key=len)] if fitting else ""
            self.assertEqual(entry, first[: len(entry)], text)

    def test_each_error_has_its_entry(self) -> None:
        described = troubleshooting()
        lacking = {}
        count = 0
        modules = [
            (module, package) for package in reasons.PACKAGES for module in package.rglob("*.py")
        ]
        for module, package in sorted(modules):
            for text in reasons.errors(module, package):
                if looked_for := reasons.told(text):
                    count += 1
                    if looked_for not in described:
                        lacking[looked_for] = module.name
        self.assertGreater(count, 250)
        self.assertEqual({}, lacking, "the pages on troubleshooting have no entry for these")

    def test_each_kind_of_error_has_its_entry(self) -> None:
        described = troubleshooting()
        for name, error in reasons.ERRORS.items():
            if not (parameters := reasons.parameters(error)):
                continue  # a kind of kinds
            text = reasons.told(str(error(*(reasons.ANY for _ in parameters))))
            with self.subTest(name):
                self.assertEqual(text, text if text in described else "no entry for it")
