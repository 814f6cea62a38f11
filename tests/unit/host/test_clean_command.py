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
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import child, clean_command
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

    def test_of_a_mig_instance(self) -> None:
        self.script("echo $NOVA_GPU_ADDRESS $NOVA_GPU_MODE $NOVA_GPU_MIG_INSTANCE")
        command, card = [str(self.program)], cards.card("0000:88:00.0")
        slot = Slot.parse("0000:88:00.0/1g.18gb/900")
        done = clean_command.run(command, card, DeliveryMode.VGPU, 60, self.root, slot)
        self.assertEqual((0, "0000:88:00.0 vgpu 9/0\n"), done)

    def test_no_end(self) -> None:
        self.script("echo here; sleep 1000")
        error, _ = processes.hung(
            lambda limit_s: self.assertRaises(child.TimedOut, self.run_it, timeout_s=limit_s),
            lambda error: bool(error.output),
        )
        self.assertEqual(b"here\n", error.output)

    def test_not_a_program(self) -> None:
        self.script("true")
        self.program.write_bytes(b"\0")
        self.assertRaises(child.Failed, self.run_it)

    def refused(self, program: str | pathlib.Path | None = None) -> str:
        command = [str(program or self.program)]
        error = self.assertRaises(exception.InvalidOption, clean_command.check, command, self.root)
        self.assertEqual("clean_command", error.option)
        return error.reason

    def test_what_is_no_program(self) -> None:
        self.assertIn("not an absolute path", self.refused("clean"))
        self.assertIn("No such file", self.refused(self.folder / "none"))
        self.assertIn("is not a program", self.refused(self.folder))
        self.program.chmod(0o644)
        self.assertIn("is not a program", self.refused())

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


def _example(number: int) -> str:
    """One of the documentation's scripts"""
    block = _PAGE.read_text().split(".. code-block:: sh\n\n")[number]
    lines = itertools.takewhile(lambda line: line[:1] in ("", " "), block.splitlines())
    return textwrap.dedent("\n".join(lines))


class LeftMIGTest(base.BaseTestCase):
    """The example for cards that vfio-pci has, with a tool that does as NVIDIA's does: whatever its
    words' order, a reset comes first, then what is to be after the next one, then the question
    (NVIDIA/gpu-admin-tools 2025.10.20, cli/main.py, per_device.py and per_gpu.py)."""

    _TOOL = """import pathlib, sys
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

    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.folder / "nvidia_gpu_tools.py").write_text(self._TOOL)

    def run_it(self, left: str, product: str = "10de:20b5", mode: str = "pci") -> tuple[bool, str]:
        """Whether the card is clean, and its MIG mode afterwards"""
        (self.folder / "mode").write_text(left)
        script = _example(2).replace("/opt/gpu-admin-tools", str(self.folder))
        environment = {
            "PATH": os.environ["PATH"],
            "NOVA_GPU_ADDRESS": "0000:88:00.0",
            "NOVA_GPU_MODE": mode,
            "NOVA_GPU_PRODUCT": product,
        }
        argv = ["sh", "-c", script]
        done = subprocess.run(argv, env=environment, capture_output=True, timeout=300)
        return done.returncode == 0, (self.folder / "mode").read_text()

    def test_its_mode_afterwards(self) -> None:
        """Others forget it, or are with their driver, which is asked."""
        for asked, expected in (
            (("enabled",), (True, "disabled")),
            (("disabled",), (True, "disabled")),
            (("enabled", "10de:2330"), (True, "enabled")),
            (("enabled", "10de:20b5", "lxc"), (True, "enabled")),
        ):
            self.assertEqual(expected, self.run_it(*asked))
        (self.folder / "stuck").touch()
        self.assertEqual((False, "enabled"), self.run_it("enabled"))


class ExampleTest(base.BaseTestCase):
    """The documentation's, with an nvidia-smi that resets no card in persistence mode"""

    _SMI = """#!/bin/sh
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

    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        smi = self.folder / "nvidia-smi"
        smi.write_text(self._SMI)
        smi.chmod(0o755)
        self.script = _example(1)

    def run_it(self, persistence: str, mode: str = "lxc") -> tuple[int, str]:
        """How it ended, and the persistence mode afterwards"""
        (self.folder / "mode").write_text(f"{persistence}\n")
        path = f"{self.folder}:{os.environ['PATH']}"
        environment = {"PATH": path, "NOVA_GPU_ADDRESS": "0000:88:00.0", "NOVA_GPU_MODE": mode}
        done = subprocess.run(["sh", "-c", self.script], env=environment, timeout=300)
        return done.returncode, (self.folder / "mode").read_text().strip()

    def test_persistence_afterwards(self) -> None:
        self.assertEqual((0, "Enabled"), self.run_it("Enabled", "vgpu"))
        self.assertFalse((self.folder / "calls").exists(), "a MIG instance")
        for persistence in ("Enabled", "Disabled"):
            self.assertEqual((0, persistence), self.run_it(persistence))
            calls = (self.folder / "calls").read_text()
            self.assertIn("--id=0000:88:00.0 --gpu-reset\n", calls)
        (self.folder / "stuck").touch()
        status, persistence = self.run_it("Enabled")
        self.assertEqual((True, "Enabled"), (status != 0, persistence))
