# SPDX-License-Identifier: Apache-2.0
"""How the processes in a VM and in a lab come to be measured by ``tools.coverage``."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import coverage
import fixtures
import testtools

from tools import measuring
from tools.novalab import packages, settings
from tools.testing.environment import ROOT
from tools.vfiolab import measured

# As tools/vfiolab/inside/prepare.py runs what it is told
_PREPARED = """
import json, os, runpy, sys
told = json.loads(sys.argv[1])
os.environ.update(told["environment"])
sys.argv = told["words"]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

# As the agent in a VM has nova-compute, at work when it is killed. It says whether that was so.
_KILLED = """
import os, sys, threading, time
from tests.cloud import process
from tests.vfio import last_words

words = last_words.LastWords()
reads, ready = os.pipe()
left = sys.argv[1]

def work():
    import json.tool
    words.begin()
    def go_on():
        while True:
            open(left, "w").write(str(time.monotonic()))
            os.write(ready, b".")
            time.sleep(0.001)
    threading.Thread(target=go_on, daemon=True).start()
    while True:
        time.sleep(60)

pid = process.fork(work)
os.read(reads, 1)
words.kill(pid)
written = open(left).read()
time.sleep(0.2)
print(written == open(left).read(), os.path.exists(f"/proc/{pid}"))
os._exit(0)
"""


class _Case(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.measure(None)

    def measure(self, folder: pathlib.Path | None) -> None:
        settings = str(folder / "coveragerc") if folder else None
        self.useFixture(fixtures.EnvironmentVariable(measuring.START, settings))


class VMTest(_Case):
    def setUp(self) -> None:
        super().setUp()
        self.out = self.folder / "out"
        self.out.mkdir()

    def test_nothing_is_another_where_nothing_is_measured(self) -> None:
        words = ["tests.vfio.agent", "1234"]
        self.assertEqual({}, measured.begin(self.out))
        self.assertEqual(words, measured.module(words))
        (self.out / f"{measuring.DATA}.vm.pid1").touch()
        measured.gather(self.out)
        self.assertEqual([self.out / f"{measuring.DATA}.vm.pid1"], list(self.out.iterdir()))

    def test_what_a_vm_is_told_and_what_comes_of_it(self) -> None:
        self.measure(self.folder)
        told = measured.begin(self.out)
        self.assertEqual({measuring.START: "/out/coveragerc"}, told)
        self.assertIn("data_file = /out/data\n", (self.out / "coveragerc").read_text())
        (self.out / f"{measuring.DATA}.vm.pid1").touch()
        measured.gather(self.out)
        self.assertEqual([self.out / "coveragerc"], list(self.out.iterdir()))
        self.assertTrue((self.folder / f"{measuring.DATA}.vm.pid1").exists())

    def test_a_process_that_was_begun_before(self) -> None:
        self.measure(self.folder)
        words = measured.module(["json.tool", "--no-indent"])
        file = self.folder / "coveragerc"
        file.write_text(measuring.config(self.folder / measuring.DATA, "include = */json/*"))
        told = json.dumps({"words": words, "environment": {measuring.START: str(file)}})
        argv = [sys.executable, "-c", _PREPARED, told]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        del environment[measuring.START]
        done = subprocess.run(
            argv, input="[1]", capture_output=True, text=True, env=environment, check=True
        )
        self.assertEqual("[1]\n", done.stdout)
        self.assertTrue(list(self.folder.glob(f"{measuring.DATA}.*")))

    def test_a_process_that_is_killed(self) -> None:
        """It is dead at once, whether it is measured or not."""
        file = self.folder / "coveragerc"
        file.write_text(measuring.config(self.folder / measuring.DATA, "include = */json/tool.py"))
        argv = [sys.executable, "-c", _KILLED, str(self.folder / "left")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for measures in (False, True):
            if measures:
                environment[measuring.START] = str(file)
            done = subprocess.run(argv, capture_output=True, text=True, env=environment)
            self.assertEqual(("True False\n", ""), (done.stdout, done.stderr))
        found = coverage.CoverageData(str(self.folder / "all"))
        for data in self.folder.glob(f"{measuring.DATA}.*"):
            found.update(_read(data))
        self.assertEqual(["tool.py"], [os.path.basename(each) for each in found.measured_files()])


def _read(file: pathlib.Path) -> coverage.CoverageData:
    data = coverage.CoverageData(str(file))
    data.read()
    return data


class LabTest(_Case):
    def setUp(self) -> None:
        super().setUp()
        self.lab = settings.Lab(self.folder / "lab", settings.Ports(), "secret")
        self.site = self.lab.venv / "lib/python3.11/site-packages"
        self.site.mkdir(parents=True)
        # Of its pip.
        program = pathlib.Path(self.lab.program("python"))
        program.parent.mkdir()
        program.symlink_to("/bin/true")

    def started_with(self) -> str:
        """What a process of the environment has for coverage, when that looks"""
        code = f"import os, site; site.addsitedir({str(self.site)!r}); "
        code += f"print(os.environ.get({measuring.START!r}, ''))"
        argv = [sys.executable, "-I", "-S", "-c", code]
        return subprocess.run(argv, capture_output=True, text=True, env={}, check=True).stdout[:-1]

    def test_processes_with_any_environment_for_as_long_as_the_run(self) -> None:
        self.measure(self.folder)
        packages.measure(self.lab)
        file = self.folder / "lab.coveragerc"
        self.assertEqual(str(file), self.started_with())
        self.assertIn(f"    {self.site}/nova_gpu/*\n", file.read_text())
        file.unlink()
        self.assertEqual("", self.started_with())

    def test_none_without_such_a_run(self) -> None:
        self.measure(self.folder)
        packages.measure(self.lab)
        self.measure(None)
        packages.measure(self.lab)
        self.assertEqual("", self.started_with())
        self.assertEqual([], list(self.site.iterdir()))
