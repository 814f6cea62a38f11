# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import fixtures
import testtools

from tools import coverage, measuring, reached
from tools.testing.environment import ROOT

# One process begins another, which leaves as a fork does: without Python's own end.
_PROCESSES = """
import os, subprocess, sys
from nova_gpu.core import names
code = "import os; from nova_gpu.core.flavor import condition; os._exit(0)"
subprocess.run([sys.executable, "-c", code])
"""
# Where the package is installed, as in a lab.
_INSTALLED = """
import runpy
from nova_gpu.core import names
runpy.run_path("nova/virt/gpu/__init__.py")
"""
# In another process: where this one is measured itself, the second object of coverage's would keep
# the first from writing down what it has seen.
_READ = """
import json, pathlib, sys
from tools import coverage, reached
found = coverage.modules(pathlib.Path(sys.argv[1]))
print(json.dumps(reached.plain(reached.Measured("", "", 0.0, 0.0, found))))
"""


def _module(lines: set[int], branches: set[tuple[int, int]], digest: str = "d") -> reached.Module:
    return reached.Module(
        digest,
        frozenset(lines),
        frozenset({1, 2, 3, 4}),
        frozenset(branches),
        frozenset({(1, 2), (1, 3)}),
    )


def _measured(name: str, **modules: reached.Module) -> reached.Measured:
    return reached.Measured(name, "2 passed, 0 failed, 0 skipped", 1.5, 2.5, modules)


BEFORE = _measured("before", a=_module({1, 2, 3}, {(1, 2), (1, 3)}), b=_module({1}, set()))


class RunTest(testtools.TestCase):
    def test_processes_and_what_they_start(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = pathlib.Path(folder.name, "coveragerc")
        config.write_text(coverage.config(config.with_name("data")))
        environment = {**os.environ, measuring.START: str(config)}
        subprocess.run([sys.executable, "-c", _PROCESSES], env=environment, check=True)
        modules = self.read(config)
        self.assertTrue(modules["nova_gpu/core/names.py"].lines)
        self.assertTrue(modules["nova_gpu/core/flavor/condition.py"].lines)
        self.assertFalse(modules["nova_gpu/virt/driver.py"].lines)
        self.assertTrue(modules["nova_gpu/virt/driver.py"].all_branches)

    def test_where_the_package_is_installed(self) -> None:
        name = self.useFixture(fixtures.TempDir()).path
        config = pathlib.Path(name, "coveragerc")
        config.write_text(coverage.config(config.with_name(measuring.DATA)))
        site = pathlib.Path(name, "site-packages")
        shutil.copytree(ROOT / "nova_gpu/core", site / "nova_gpu/core")
        (site / "nova_gpu/__init__.py").touch()
        shim = site / "nova/virt/gpu/__init__.py"
        shim.parent.mkdir(parents=True)
        # Of the one there is what this would import is left out.
        shim.write_text("\n\n\nGPULibvirtDriver = None\n")
        own = config.with_name("own")
        own.write_text(measuring.config(config.with_name(measuring.DATA), f"include = {site}/*"))
        environment = {**os.environ, measuring.START: str(own), "PYTHONPATH": str(site)}
        argv = [sys.executable, "-c", _INSTALLED]
        subprocess.run(argv, cwd=site, env=environment, check=True)
        modules = self.read(config)
        self.assertTrue(modules["nova_gpu/core/names.py"].lines)
        self.assertTrue(modules["nova_gpu/virt_ext/__init__.py"].lines)
        self.assertFalse(modules["nova_gpu/virt/driver.py"].lines)
        self.assertTrue(modules["nova_gpu/virt/driver.py"].all_branches)

    def read(self, config: pathlib.Path) -> Mapping[str, reached.Module]:
        told = config.with_name("told")
        with told.open("w") as output:
            subprocess.run([sys.executable, "-c", _READ, str(config)], stdout=output, check=True)
        return reached.read(str(told)).modules


class CompareTest(testtools.TestCase):
    def test_what_is_reached_no_more(self) -> None:
        after = _measured("after", a=_module({1, 2}, {(1, 2)}), b=_module({1, 4}, set()))
        found = reached.compare(BEFORE, after)
        self.assertEqual(["a: lines 3", "a: branches 1->3"], found)
        self.assertEqual([], reached.compare(after, after))

    def test_a_file_that_is_gone_or_was_changed(self) -> None:
        after = _measured("after", a=_module({1, 2}, set(), "other"))
        self.assertEqual(
            [
                "a, which was changed: 3 lines and 2 branches before, 2 and 0 after",
                "b, which was changed: 1 lines and 0 branches before, 0 and 0 after",
            ],
            reached.compare(BEFORE, after),
        )

    def test_together(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        names = []
        for measured in (BEFORE, _measured("more", a=_module({4}, set()), c=_module(set(), set()))):
            names.append(f"{folder.name}/{measured.name}.json")
            pathlib.Path(names[-1]).write_text(json.dumps(reached.plain(measured)))
        both = reached.read(",".join(names))
        self.assertEqual({"a", "b", "c"}, set(both.modules))
        self.assertEqual(
            "before+more: 5 of 12 (41.7%) lines, 2 of 6 (33.3%) branches; 3 s, 5 s of CPU; "
            "2 passed, 0 failed, 0 skipped; 2 passed, 0 failed, 0 skipped",
            reached.totals(both),
        )
        other = _measured("other", a=_module({4}, set(), "changed"))
        self.assertRaises(reached.Unlike, lambda: BEFORE | other)
