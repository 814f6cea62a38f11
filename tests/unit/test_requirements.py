# SPDX-License-Identifier: Apache-2.0
"""What the client needs is installed without Nova, and what nova_gpu needs is there with Nova."""

from __future__ import annotations

import ast
import functools
import pathlib
import subprocess
import sys
import tomllib
import unittest
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fixtures.sources import imports, listed, name_of

ROOT = pathlib.Path(__file__).parents[2]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What Nova's hosts have
_NOVA = _PROJECT["optional-dependencies"]["nova"]
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
    found = metadata.packages_distributions()
    return {package: set(map(canonicalize_name, names)) for package, names in found.items()}


class ClientTest(unittest.TestCase):
    def test_every_module_is_imported_without_nova(self) -> None:
        own = closure(listed("requirements.txt"))
        self.assertNotIn("nova", own)
        refused = {
            package
            for package, names in _packages().items()
            if not names & own and package not in ("nova_gpu", "osc_gpu")
        }
        refused -= set(sys.stdlib_module_names)
        self.assertLess({"nova", "eventlet", "sqlalchemy"}, refused)
        modules = [
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for path in sorted((ROOT / "osc_gpu").rglob("*.py"))
        ]
        self.assertIn("osc_gpu.capacity", modules)
        argv = [sys.executable, "-W", "ignore", "-c", _IMPORT, ",".join(refused), *modules]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
        self.assertEqual("", done.stderr[-2000:])


class HostTest(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        imported = {
            name.partition(".")[0]
            for path in (ROOT / "nova_gpu").rglob("*.py")
            for name in imports(ast.parse(path.read_text()))
        }
        self.others = imported - set(sys.stdlib_module_names) - _OPTIONAL - {"nova_gpu"}
        self.assertIn("oslo_config", self.others)

    def assert_among(self, names: set[str]) -> None:
        missing = {package for package in self.others if not _packages()[package] & names}
        self.assertEqual(set(), missing)

    def test_all_that_is_imported_is_there_with_nova(self) -> None:
        """Also where nova-gpu is installed without its extra, beside a Nova."""
        self.assert_among(closure([*listed("requirements.txt"), "nova"]))

    def test_the_extra_names_what_is_imported(self) -> None:
        self.assert_among({*map(name_of, (*_NOVA, *listed("requirements.txt")))})
