# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import configparser
import importlib
import pathlib
import re
import tomllib
import unittest

from tests.fixtures.sources import listed, name_of
from tools.environments import NEWEST, RELEASES

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


class TestEntryPoints(unittest.TestCase):
    def test_they_can_be_loaded(self):
        groups = {**PROJECT["project"]["entry-points"], "scripts": PROJECT["project"]["scripts"]}
        for group, points in groups.items():
            for name, target in points.items():
                module, _, attribute = target.partition(":")
                with self.subTest(f"{group}: {name}"):
                    loaded = importlib.import_module(module)
                    self.assertTrue(not attribute or callable(getattr(loaded, attribute)))


class TestDebian(unittest.TestCase):
    def test_its_version_is_what_the_next_tag_is_called(self):
        first = (ROOT / "debian" / "changelog").read_text().partition("\n")[0]
        (version,) = re.findall(r"^nova-gpu \(([\d.]+)(?:~dev\d+)?-\d+\)", first)
        config = configparser.ConfigParser()
        config.read(ROOT / "setup.cfg")
        self.assertEqual(config["metadata"]["version"], version)


class TestConstraints(unittest.TestCase):
    def test_every_requirement_is_pinned_for_every_release(self):
        files = ["requirements.txt", "test-requirements.txt"]
        newest = [*files, "lint-requirements.txt", "doc/requirements.txt"]
        for number, release in RELEASES.items():
            constraints = listed(f"tools/constraints/{release}.txt")
            self.assertEqual([], [each for each in constraints if "==" not in each])
            pinned = {*map(name_of, constraints)}
            for name in newest if number == NEWEST else files:
                with self.subTest(f"{release}: {name}"):
                    self.assertEqual(set(), {*map(name_of, listed(name))} - pinned)
            for requirement in PROJECT["project"]["optional-dependencies"]["nova"]:
                with self.subTest(f"{release}: {requirement}"):
                    self.assertIn(name_of(requirement), pinned)
