# SPDX-License-Identifier: Apache-2.0
"""The real binding over a library with libnvfm's ABI"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.core.sets.partitions import Partition
from nova_gpu.fabric.host import fabric_manager
from nova_gpu.fabric.host.fabric_manager import FabricManager, FailedDevice, Refused
from nova_gpu.host.roots import Roots
from tests.fixtures import nvfm, processes
from tests.fixtures.holding import ControlGroup
from tests.fixtures.partitions import A100_TWO, H100


class FabricTestCase(base.BaseTestCase):
    mode = 1

    def setUp(self) -> None:
        super().setUp()
        self.manager = self.useFixture(nvfm.FabricManager(H100, mode=self.mode))
        self.ours = FabricManager("127.0.0.1:6666", 60)

    def refused(self, call: Callable[..., object], *args: object) -> Refused:
        return self.assertRaises(Refused, call, *args)


class ReadTest(FabricTestCase):
    def test_the_table(self) -> None:
        self.assertEqual(H100, self.ours.read().partitions)
        self.assertEqual((), self.ours.read().unsupported)
        self.assertEqual((), self.ours.read().failed)

    def test_another_table(self) -> None:
        self.useFixture(nvfm.FabricManager(A100_TWO))
        self.assertEqual(A100_TWO, self.ours.read().partitions)

    def test_by_a_unix_socket(self) -> None:
        self.assertEqual(H100, FabricManager(self.manager.socket, 60).read().partitions)

    def test_partitions_that_are_lost(self) -> None:
        self.manager.says("switch 00000000:05:00.0 33", lost=[0, 1, 2])
        fabric = self.ours.read()
        self.assertEqual(H100[3:], fabric.partitions)
        self.assertEqual(H100[:3], fabric.unsupported)
        self.assertEqual((FailedDevice("00000000:05:00.0", True, (33,)),), fabric.failed)

    def test_partitions_that_are_degraded(self) -> None:
        self.manager.says("links 3 16 18")
        degraded = {p.id: set(p.degraded) for p in self.ours.read().partitions if p.degraded}
        self.assertEqual({0: {3}, 1: {3}, 3: {3}}, degraded)

    def test_failures_that_it_does_not_tell(self) -> None:
        self.manager.restart()
        fabric = self.ours.read()
        self.assertIsNone(fabric.failed)
        self.assertEqual(H100, fabric.partitions)


class LifeTest(FabricTestCase):
    def test_activated_and_deactivated(self) -> None:
        self.ours.activate(1)
        self.ours.activate(5)
        self.assertEqual({1, 5}, self.manager.active)
        self.ours.deactivate(1)
        self.assertEqual({5}, self.manager.active)

    def test_cards_of_another_partition(self) -> None:
        self.ours.activate(1)
        for number in (0, 1, 3, 7):
            self.assertEqual(fabric_manager.IN_USE, self.refused(self.ours.activate, number).code)
        self.assertEqual({1}, self.manager.active)

    def test_after_its_restart(self) -> None:
        self.ours.activate(1)
        self.manager.restart()
        error = self.refused(self.ours.activate, 2)
        self.assertEqual(fabric_manager.NOT_CONFIGURED, error.code)
        self.ours.set_active([1])
        self.ours.activate(2)
        self.assertEqual({1, 2}, self.manager.active)

    def test_without_functions_only(self) -> None:
        self.assertEqual(
            -3, self.refused(self.ours.activate, 7, [PciAddress.parse("0000:86:00.4")]).code
        )


class VirtualFunctionsTest(FabricTestCase):
    mode = 2

    def test_each_with_its_address(self) -> None:
        functions = ["0000:86:00.4", "00010000:b8:1f.7"]
        self.ours.activate(3, [PciAddress.parse(each) for each in functions])
        self.assertEqual({3}, self.manager.active)
        self.assertEqual(["3 0000:86:00.4 10000:b8:1f.7"], self.manager.functions())

    def test_in_the_order_of_the_partition(self) -> None:
        board = [Partition(3, frozenset((1, 3)), order=(3, 1))]
        modules = {"0000:86:00.0": 1, "0000:87:00.0": 3}
        self.useFixture(nvfm.FabricManager(board, mode=2, modules=modules))
        self.assertEqual((3, 1), self.ours.read().partitions[0].order)
        functions = [PciAddress.parse(each) for each in ("0000:86:00.4", "0000:87:00.4")]
        self.assertEqual(-1, self.refused(self.ours.activate, 3, functions).code)
        self.ours.activate(3, functions[::-1])

    def test_one_for_each_card(self) -> None:
        function = PciAddress.parse("0000:86:00.4")
        self.assertEqual(-1, self.refused(self.ours.activate, 3, [function]).code)
        self.assertEqual(-3, self.refused(self.ours.activate, 3).code)
        self.assertEqual(set(), self.manager.active)


class FaultsTest(FabricTestCase):
    def said(self, *faults: str) -> str:
        self.manager.says(*faults)
        return str(self.refused(self.ours.read))

    def test_what_each_means(self) -> None:
        for fault, *words in (
            ("connect -9", "127.0.0.1:6666: it does not answer;", "[gpu]fabric_manager_address"),
            ("connect -6", "it is of another version than its library"),
            ("mode 0", "it does not share the NVSwitches between guests; set FABRIC_MODE=1"),
            ("connect -15", "fmConnect failed with -15"),
        ):
            said = self.said(fault)
            for word in words:
                self.assertIn(word, said)

    def test_hanging(self) -> None:
        self.manager.says("hang")
        error, limit_s = processes.hung(
            lambda limit_s: self.refused(FabricManager("127.0.0.1", limit_s).read),
            lambda error: True,
        )
        self.assertIn(f"did not answer within {limit_s} s", str(error))

    def test_without_the_library(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("LD_LIBRARY_PATH", "/nowhere"))
        said = str(self.refused(self.ours.read))
        self.assertIn("library cannot be used: libnvfm.so", said)
        self.assertIn("install nvidia-fabricmanager and its devel package", said)

    def test_a_table_that_cannot_be(self) -> None:
        self.manager.folder.joinpath("table").write_text("partition 0 1,1\n")
        self.assertIn("table of partitions cannot be understood", str(self.refused(self.ours.read)))


class ModeTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.roots = Roots(proc=self.root / "proc")
        self.roots.proc.mkdir()
        self.config = self.root / "fabricmanager.cfg"

    def run_program(self, number: int, *words: str) -> None:
        process = self.roots.proc / str(number)
        process.mkdir(parents=True)
        (process / "cmdline").write_text("".join(f"{word}\0" for word in words))
        program = self.root / "bin" / pathlib.PurePath(words[0]).name
        program.parent.mkdir(exist_ok=True)
        program.touch(0o755)
        (process / "exe").symlink_to(program)

    def test_by_the_configuration_of_the_one_that_runs(self) -> None:
        self.config.write_text("# FABRIC_MODE=1\nFABRIC_MODE_RESTART=0\nFABRIC_MODE = 2\n")
        self.run_program(12, "/usr/bin/vi", "-c", str(self.config))
        (self.roots.proc / "13").mkdir()
        self.assertIsNone(fabric_manager.mode(self.roots))
        self.run_program(14, "/usr/bin/nv-fabricmanager", "-c", str(self.config))
        self.assertEqual(2, fabric_manager.mode(self.roots))

    def test_not_told(self) -> None:
        self.assertIsNone(fabric_manager.mode(self.roots))
        self.run_program(14, "nv-fabricmanager", "-c", str(self.config))
        self.assertIsNone(fabric_manager.mode(self.roots), "no such file")
        os.mkfifo(self.config)
        self.assertIsNone(fabric_manager.mode(self.roots), "a pipe")
        self.config.unlink()
        self.config.write_text("LOG_LEVEL=4\n")
        self.assertIsNone(fabric_manager.mode(self.roots), "not in the file")

    def test_not_of_a_program_that_any_user_starts(self) -> None:
        self.config.write_text("FABRIC_MODE=2\n")
        words = "nv-fabricmanager", "-c", str(self.config)
        self.run_program(14, *words)
        program = self.root / "sudo"
        program.touch(0o755)
        exe = self.roots.proc / "14/exe"
        exe.unlink()
        exe.symlink_to(program)
        self.assertIsNone(fabric_manager.mode(self.roots), "sudo by another name")
        exe.unlink()
        own = program.rename(self.root / "nv-fabricmanager")
        exe.symlink_to(own)
        self.assertEqual(2, fabric_manager.mode(self.roots))
        own.chmod(0o757)
        self.assertIsNone(fabric_manager.mode(self.roots), "any user can write the program")
        own.chmod(0o755)
        self.config.chmod(0o666)
        self.assertIsNone(fabric_manager.mode(self.roots), "any user can write the file")
        self.config.chmod(0o644)
        other = self.root / "other.cfg"
        other.write_text("FABRIC_MODE=1\n")
        self.run_program(15, *words[:2], str(other))
        self.assertIsNone(fabric_manager.mode(self.roots), "they contradict each other")

    def test_not_of_another_users(self) -> None:
        if os.geteuid():
            self.skipTest("only root makes files of other users")
        self.config.write_text("FABRIC_MODE=2\n")
        self.run_program(14, "nv-fabricmanager", "-c", str(self.config))
        os.chown(self.roots.proc / "14", 65534, 65534)
        self.assertIsNone(fabric_manager.mode(self.roots))
        os.chown(self.roots.proc / "14", 0, 0)
        os.chown(self.config, 65534, 65534)
        self.assertIsNone(fabric_manager.mode(self.roots))
        os.chown(self.config, 0, 0)
        self.assertEqual(2, fabric_manager.mode(self.roots))

    def test_what_no_user_can_forge(self) -> None:
        """nova-compute is no root, so it cannot read which program root's processes run: that may
        be any setuid program, which a user has started by that name."""
        if os.geteuid():
            self.skipTest("only root starts processes of root")
        self.config.write_text("FABRIC_MODE=2\n")
        for folder in (self.config.parent, self.config.parent.parent):
            folder.chmod(0o755)
        read = """
import os, pathlib
from nova_gpu.fabric.host import fabric_manager
from nova_gpu.host.roots import Roots
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(fabric_manager.mode(Roots()))
"""

        def mode() -> str:
            command = [sys.executable, "-c", read]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        group = self.useFixture(ControlGroup(b"system.slice/nvidia-fabricmanager.service"))
        script = self.root / "script"
        script.write_text("read line")
        shell = f"exec -a nv-fabricmanager bash {script} -c {self.config}"
        process = subprocess.Popen(["bash", "-c", shell], stdin=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual("None\n", mode())
        group.enter(process.pid)
        self.assertEqual("2\n", mode())
