# SPDX-License-Identifier: Apache-2.0
"""What is written to a card's files, in a generated tree. What VFIO does, tests/vfio tests."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import os
import pathlib
import subprocess
import sys
import termios

import fixtures
import testtools

from nova_gpu.core import exception, model
from nova_gpu.host import child_process
from nova_gpu.host.vfio import binding
from tests.fixtures import pci
from tests.fixtures.bases.host import HostTestCase

CARD, AUDIO = "0000:3b:00.0", "0000:3b:00.1"
PORT = "0000:3a:01.0"


class ResetterTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_bridge(PORT)

    def settings(self, timeout_s: float = 60) -> binding.RebindSettings:
        return binding.RebindSettings(self.host.roots, self.host.root / "records", timeout_s)

    def add(self, *methods: str, companions: bool = True) -> model.GPU:
        self.host.add_gpu(
            CARD,
            "10de",
            "25b6",
            driver="vfio-pci",
            parent=PORT,
            companions=[pci.AUDIO] if companions else (),
        )
        for address, method in zip((CARD, AUDIO), methods, strict=False):
            (self.host.devices / address / "reset_method").write_text(f"{method}\n")
        return self.gpu_at(CARD)

    def written(self) -> list[str]:
        """The functions that were reset"""
        files = self.host.devices.glob("*/reset")
        return sorted(path.parent.name for path in files if path.read_text())

    def reason(self, gpu: model.GPU, timeout_s: float = 60, **kwargs: bool) -> str:
        error = self.assertRaises(
            exception.NotClean, binding.reset, gpu, self.settings(timeout_s), **kwargs
        )
        self.assertEqual(CARD, error.address)
        self.remedy = error.remedy
        return str(error.reason)

    def test_every_function_by_its_own(self) -> None:
        gpu = self.add("flr bus", "pm")
        binding.reset(gpu, self.settings())
        self.assertEqual([CARD, AUDIO], self.written())
        (self.host.devices / AUDIO / "reset").unlink()
        self.assertIn("VFIO", self.reason(gpu))

    def test_bus_works_for_what_is_alone_on_it(self) -> None:
        gpu = self.add("bus", companions=False)
        binding.reset(gpu, self.settings())
        self.assertEqual([CARD], self.written())
        (self.host.devices / CARD / "reset_method").unlink()  # an old kernel does not tell it
        (self.host.devices / CARD / "reset").write_text("")
        binding.reset(gpu, self.settings())
        self.assertEqual([CARD], self.written())

    def test_bus_does_not_work_beside_others(self) -> None:
        """The file of function 0 is there all the same; VFIO, which this tree lacks, is asked."""
        gpu = self.add("bus", "flr")
        self.assertIn("the reset of its bus by VFIO", self.reason(gpu))
        self.assertIn("[gpu]require_reset = false", self.remedy)
        self.assertEqual([], self.written())

    def test_not_required(self) -> None:
        gpu = self.add("bus", "bus")
        binding.reset(gpu, self.settings(), required=False)
        (self.host.devices / AUDIO / "config").write_bytes(b"\xff" * 256)
        self.assertIn(f"{AUDIO} does not answer", self.reason(gpu, required=False))
        pci.write(self.host.roots.sysfs / f"class/vfio/{gpu.iommu_group}/dev", "1:3\n")
        (self.host.roots.proc / "812/fd").mkdir(parents=True)
        (self.host.roots.proc / "812/fd/7").symlink_to("/dev/null")
        self.assertIn("it is still in use by ? (pid 812)", self.reason(gpu, 1, required=False))
        (self.host.roots.proc / "812/fd/7").unlink()
        os.mkfifo(self.host.roots.proc / "812/maps")  # a process's memory that is locked
        with testtools.ExpectedException(exception.NotCleanedYet, ".*did not answer within 1 s"):
            binding.reset(gpu, self.settings(1))

    def test_does_not_answer(self) -> None:
        gpu = self.add("flr", "flr")
        for content in (b"\xff" * 256, b""):
            (self.host.devices / CARD / "config").write_bytes(content)
            self.assertIn(f"{CARD} does not answer after its reset", self.reason(gpu))

    def test_gone(self) -> None:
        gpu = self.add("flr", "flr")
        self.host.remove(AUDIO)
        self.assertIn(AUDIO, self.reason(gpu))

    def test_refused_by_the_kernel(self) -> None:
        gpu = self.add("flr", "flr")
        (self.host.devices / AUDIO / "reset").unlink()
        (self.host.devices / AUDIO / "reset").mkdir()
        self.assertIn(f"{AUDIO}/reset: Is a directory", self.reason(gpu))

    def test_hangs(self) -> None:
        """A FIFO that nobody reads holds the child, as a card does that does not come back."""
        gpu = self.add("flr", "flr")
        (self.host.devices / CARD / "reset").unlink()
        os.mkfifo(self.host.devices / CARD / "reset")
        self.assertEqual(f"resetting {CARD} did not end in 5 s", self.reason(gpu, 5))
        (self.host.devices / CARD / "reset").unlink()
        (self.host.devices / CARD / "reset").touch()
        binding.reset(gpu, self.settings())

    def test_a_reset_that_cannot_be_ended(self) -> None:
        """Until it ends, the card is neither reset nor bound."""
        gpu = self.add("flr", "flr")
        process = subprocess.Popen(["sleep", "300"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        hung = child_process.TimedOut("did not answer", f"resetting {CARD}\n".encode(), process)
        with fixtures.MockPatchObject(child_process, "run", side_effect=hung):
            self.assertEqual(f"resetting {CARD} did not end in 1 s", self.reason(gpu, 1))
        self.assertEqual("an earlier reset of it does not end", self.reason(gpu))
        drivers = {gpu.address: binding.FormerDriver("nvidia")}
        self.assertRaises(binding._Hangs, binding._move, gpu, drivers, (), self.settings())
        process.kill()
        process.wait()
        binding.reset(gpu, self.settings())

    def test_open_in_no_process(self) -> None:
        """A terminal for one opener answers as VFIO does; another error tells nothing."""
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        card, vfio = root / "bus/pci/devices" / CARD, root / "vfio"
        card.mkdir(parents=True)
        vfio.mkdir()
        (card / "config").write_bytes(b"\xde\x10")
        (card / "iommu_group").symlink_to("12")
        master, terminal = os.openpty()
        self.addCleanup(os.close, master)
        self.addCleanup(os.close, terminal)
        (vfio / "12").symlink_to(os.ttyname(terminal))
        request = {"sysfs": str(root), "proc": "/proc", "functions": [CARD], "vfio": str(vfio)}
        words = json.dumps({**request, "way": None, "wait_s": 0.2}) + "\n"

        def error() -> str | None:
            # PR_CAPBSET_DROP of CAP_SYS_ADMIN, which opens such a terminal all the same
            preexec = functools.partial(ctypes.CDLL(None).prctl, 24, 21, 0, 0, 0)
            script = [sys.executable, "-I", "-S", "-c", binding._SCRIPT]
            output = subprocess.check_output(script, input=words.encode(), preexec_fn=preexec)
            return json.loads(binding._last_line(output))["error"]

        self.assertIsNone(error())
        fcntl.ioctl(terminal, termios.TIOCEXCL)
        self.assertEqual(f"{vfio}/12 is open, in no process that /proc shows", error())
        (vfio / "12").unlink()
        self.assertIsNone(error())
