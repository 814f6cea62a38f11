# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import configparser
import functools
import importlib
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fixtures.checkout import EXTENSIONS
from tests.fixtures.sources import imports, listed, name_of
from tools.environments import NEWEST, RELEASES

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# All import packages of the distribution
_OURS = {
    path.name: path
    for folder in (ROOT, *EXTENSIONS)
    for path in sorted(folder.iterdir())
    if re.match(r"(nova|osc)_gpu(?!.*[.-])", path.name)
}

# Imported where they are, and no requirement: libvirt's bindings are the compute host's.
_OPTIONAL = {"libvirt", "pynvml"}

# Imports the modules named by the arguments, but for the packages that the first one names.
_IMPORT = """
import importlib, sys
refused = set(sys.argv[1].split(","))
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is not among the client's requirements", name=name)
sys.meta_path.insert(0, Refusal())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that are installed with *requirements*."""
    names: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in names or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        names.add(name)
        waiting += map(Requirement, metadata.requires(name) or ())
    return names


@functools.cache
def _packages() -> dict[str, set[str]]:
    """The distributions of each top-level package that is installed"""
    distributions = metadata.packages_distributions()
    return {package: set(map(canonicalize_name, names)) for package, names in distributions.items()}


class ClientTest(unittest.TestCase):
    def test_every_module_is_imported_without_nova(self) -> None:
        own = closure(listed("requirements.txt"))
        self.assertNotIn("nova", own)
        refused = {
            package
            for package, names in _packages().items()
            if not names & own and package not in _OURS
        }
        refused -= set(sys.stdlib_module_names)
        self.assertLess({"nova", "eventlet", "sqlalchemy"}, refused)
        modules = [
            ".".join(path.relative_to(package.parent).with_suffix("").parts)
            for package in _OURS.values()
            if package.name.startswith("osc_gpu")
            for path in sorted(package.rglob("*.py"))
        ]
        self.assertIn("osc_gpu.capacity", modules)
        argv = [sys.executable, "-W", "ignore", "-c", _IMPORT, ",".join(refused), *modules]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual("", done.stderr[-2000:])


class HostTest(unittest.TestCase):
    def test_all_that_is_imported_is_there_with_nova(self) -> None:
        """Also where nova-gpu is installed without its extra, beside a Nova."""
        imported = {
            name.partition(".")[0]
            for package in _OURS.values()
            for path in package.rglob("*.py")
            for name in imports(ast.parse(path.read_text()))
        }
        others = imported - set(sys.stdlib_module_names) - _OPTIONAL - {*_OURS}
        self.assertIn("oslo_config", others)
        there = closure([*listed("requirements.txt"), "nova"])
        self.assertEqual([], [package for package in others if not _packages()[package] & there])


class TestEntryPoints(unittest.TestCase):
    def test_they_can_be_loaded(self):
        groups = {**PROJECT["project"]["entry-points"], "scripts": PROJECT["project"]["scripts"]}
        for group, points in groups.items():
            for name, target in points.items():
                module, _, attribute = target.partition(":")
                with self.subTest(f"{group}: {name}"):
                    loaded = importlib.import_module(module)
                    self.assertTrue(not attribute or hasattr(loaded, attribute))


class PackagesTest(unittest.TestCase):
    def test_all_are_installed_but_the_tests(self) -> None:
        setuptools = PROJECT["tool"]["setuptools"]
        there = {
            ".".join(path.parent.relative_to(package.parent).parts)
            for package in _OURS.values()
            for path in package.rglob("__init__.py")
        }
        self.assertEqual(
            there - {"nova_gpu.virt_ext"}, {*setuptools["packages"]} - {"nova.virt.gpu"}
        )
        for name, folder in setuptools["package-dir"].items():
            self.assertTrue((ROOT / folder / "__init__.py").exists(), name)


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
            self.assertEqual([], [line for line in constraints if "==" not in line])
            pinned = {*map(name_of, constraints)}
            for name in newest if number == NEWEST else files:
                with self.subTest(f"{release}: {name}"):
                    self.assertEqual(set(), {*map(name_of, listed(name))} - pinned)
            for requirement in PROJECT["project"]["optional-dependencies"]["nova"]:
                with self.subTest(f"{release}: {requirement}"):
                    self.assertIn(name_of(requirement), pinned)
