# SPDX-License-Identifier: Apache-2.0
"""The programs are real; the folder they are in stands for the root of the file system."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import textwrap

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.model import DeliveryMode
from nova_gpu.host import child_process, clean_command
from tests.fixtures import cards, processes


class CleanCommandTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("only root can make a program that is root's")
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.folder = self.root / "sbin"
        self.folder.mkdir(mode=0o755)
        self.program = self.folder / "clean"
        self.script("env | sort; pwd; echo $1")

    def script(self, text: str) -> None:
        self.program.write_text(f"#!/bin/sh\n{text}\n")
        self.program.chmod(0o755)

    def run_it(self, *arguments: str, timeout_s: float = 60) -> tuple[int, str]:
        command = [str(self.program), *arguments]
        card = cards.card("0000:88:00.0")
        return clean_command.run(command, card, DeliveryMode.LXC, timeout_s, self.root)

    def test_what_it_is_told(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("OS_PASSWORD", "secret"))
        self.assertEqual(
            (
                0,
                "LC_ALL=C.UTF-8\n"
                "NOVA_GPU_ADDRESS=0000:88:00.0\n"
                "NOVA_GPU_MODE=lxc\n"
                "NOVA_GPU_PRODUCT=10de:2335\n"
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
                "PWD=/\n/\n$(touch x), and more\n",
            ),
            self.run_it("$(touch x), and more"),
        )

    def test_no_end(self) -> None:
        self.script("echo here; sleep 1000")
        error, _ = processes.hung(
            lambda limit_s: self.assertRaises(
                child_process.TimedOut, self.run_it, timeout_s=limit_s
            ),
            lambda error: bool(error.output),
        )
        self.assertEqual(b"here\n", error.output)

    def test_what_is_no_program(self) -> None:
        self.assertIn("not an absolute path", self.refused("clean"))
        self.assertIn("No such file", self.refused(self.folder / "none"))
        self.assertIn("is not a program", self.refused(self.folder))
        self.program.chmod(0o644)
        self.assertIn("is not a program", self.refused())
        self.program.chmod(0o755)
        self.program.write_bytes(b"\0")
        self.assertRaises(child_process.Failed, self.run_it)

    def refused(self, program: str | pathlib.Path | None = None) -> str:
        command = [str(program or self.program)]
        error = self.assertRaises(exception.InvalidOption, clean_command.check, command, self.root)
        self.assertEqual("clean_command", error.option)
        return error.reason

    def test_others_could_change_it(self) -> None:
        for path in (self.program, self.folder, self.root):
            for change, back in (
                (lambda path: path.chmod(0o757), lambda path: path.chmod(0o755)),
                (lambda path: os.chown(path, 1000, 0), lambda path: os.chown(path, 0, 0)),
                (_give_group, _take_group),
            ):
                change(path)
                self.assertTrue(self.refused().startswith(f"{path}: "), self.refused())
                back(path)
        clean_command.check([str(self.program)], self.root)

    def test_where_a_link_leads(self) -> None:
        open_to_all = self.root / "tmp"
        open_to_all.mkdir()
        link = self.folder / "link"
        (open_to_all / "clean").write_text("#!/bin/sh\n")
        (open_to_all / "clean").chmod(0o755)
        open_to_all.chmod(0o777)
        link.symlink_to(open_to_all / "clean")
        self.assertIn(f"{open_to_all}: all users can write", self.refused(link))
        back = open_to_all / "link"
        back.symlink_to(self.program)
        self.assertIn(f"{open_to_all}: all users can write", self.refused(back))


def _give_group(path: pathlib.Path) -> None:
    path.chmod(0o775)
    os.chown(path, 0, 1000)


def _take_group(path: pathlib.Path) -> None:
    path.chmod(0o755)
    os.chown(path, 0, 0)


_PAGE = pathlib.Path(__file__).parents[3] / "doc/source/admin/cleaning.rst"


class ExampleTestCase(base.BaseTestCase):
    """A script of the documentation with a tool that does as NVIDIA's does"""

    NUMBER: int
    TOOL: str
    SOURCE: str

    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.folder / self.TOOL).write_text(self.SOURCE)
        (self.folder / self.TOOL).chmod(0o755)
        block = _PAGE.read_text().split(".. code-block:: sh\n\n")[self.NUMBER]
        lines = itertools.takewhile(lambda line: line[:1] in ("", " "), block.splitlines())
        script = textwrap.dedent("\n".join(lines))
        self.script = script.replace("/opt/gpu-admin-tools", str(self.folder))

    def run_it(self, before: str, mode: str, product: str = "10de:20b5") -> tuple[bool, str]:
        """Whether the card is clean, and what the tool's mode is afterwards"""
        (self.folder / "mode").write_text(before)
        environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "NOVA_GPU_ADDRESS": "0000:88:00.0",
            "NOVA_GPU_MODE": mode,
            "NOVA_GPU_PRODUCT": product,
        }
        argv = ["sh", "-c", self.script]
        done = subprocess.run(argv, env=environment, capture_output=True, timeout=300)
        return done.returncode == 0, (self.folder / "mode").read_text().strip()


class LeftMIGTest(ExampleTestCase):
    """Whatever its words' order, a reset comes first, then what is to be after the next one, then
    the question (NVIDIA/gpu-admin-tools 2025.10.20, cli/main.py, per_device.py and per_gpu.py)."""

    NUMBER, TOOL = 2, "nvidia_gpu_tools.py"
    SOURCE = """import pathlib, sys
folder = pathlib.Path(__file__).parent
mode, after = folder / "mode", folder / "after"
assert sys.argv[1] == "--gpu-bdf=88:00.0", sys.argv
if "--reset-with-flr" in sys.argv and after.exists():
    after.unlink()
    if not (folder / "stuck").exists():
        mode.write_text("disabled")
if "--query-mig-mode" in sys.argv:
    print("INFO     GPU 88:00.0 MIG mode is", mode.read_text(), file=sys.stderr)
if "--force-mig-off-after-reset" in sys.argv:
    after.touch()
"""

    def test_its_mode_afterwards(self) -> None:
        """Others forget it, or are with their driver, which is asked."""
        for arguments, afterwards in (
            (("enabled", "pci"), "disabled"),
            (("disabled", "pci"), "disabled"),
            (("enabled", "pci", "10de:2330"), "enabled"),
            (("enabled", "lxc"), "enabled"),
        ):
            self.assertEqual((True, afterwards), self.run_it(*arguments))
        (self.folder / "stuck").touch()
        self.assertEqual((False, "enabled"), self.run_it("enabled", "pci"))


class PersistenceTest(ExampleTestCase):
    """No card is reset in persistence mode."""

    NUMBER, TOOL = 1, "nvidia-smi"
    SOURCE = """#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >>calls
case "$2" in
    --query-gpu=*) cat mode ;;
    --persistence-mode=0) echo Disabled >mode ;;
    --persistence-mode=1) echo Enabled >mode ;;
    --gpu-reset) grep -q Disabled mode && test ! -e stuck ;;
    *) exit 9 ;;
esac
"""

    def test_persistence_afterwards(self) -> None:
        self.assertEqual((True, "Enabled"), self.run_it("Enabled", "vgpu"))
        self.assertFalse((self.folder / "calls").exists(), "a MIG instance")
        for persistence in ("Enabled", "Disabled"):
            self.assertEqual((True, persistence), self.run_it(persistence, "lxc"))
            calls = (self.folder / "calls").read_text()
            self.assertIn("--id=0000:88:00.0 --gpu-reset\n", calls)
        (self.folder / "stuck").touch()
        self.assertEqual((False, "Enabled"), self.run_it("Enabled", "lxc"))
