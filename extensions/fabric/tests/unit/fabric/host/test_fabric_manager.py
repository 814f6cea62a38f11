# SPDX-License-Identifier: Apache-2.0
"""The real binding over a library with libnvfm's ABI"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots
from nova_gpu_fabric.core.partitions import Partition
from nova_gpu_fabric.host import fabric_manager, fabric_probe, modules
from nova_gpu_fabric.host.fabric_manager import FabricManager, Refused
from tests.fixtures import nvfm, partitions, processes
from tests.fixtures import nvml as machines
from tests.fixtures.bases.files_failing import ONE, TWO, FailingCallsTestCase, Kind
from tests.fixtures.bases.recorded import RecordedTestCase
from tests.fixtures.holding import ControlGroup
from tests.fixtures.partitions import A100_TWO, H100, MODULES, nvml_cards


class FabricTestCase(base.BaseTestCase):
    mode = 1

    def setUp(self) -> None:
        super().setUp()
        self.manager = self.useFixture(nvfm.FabricManager(H100, mode=self.mode))
        self.ours = FabricManager("127.0.0.1:6666", 60)

    def refused(self, call: Callable[..., object], *args: object) -> Refused:
        return self.assertRaises(Refused, call, *args)


class ReadTest(FabricTestCase):
    def test_tables(self) -> None:
        self.assertEqual(H100, FabricManager(self.manager.socket, 60).read().partitions)
        self.manager.restart()
        fabric = self.ours.read()
        self.assertEqual((None, H100), (fabric.failed, fabric.partitions))  # it tells no failures
        self.useFixture(nvfm.FabricManager(A100_TWO))
        self.assertEqual(A100_TWO, self.ours.read().partitions)


class VirtualFunctionsTest(FabricTestCase):
    mode = 2

    def test_in_the_order_of_the_partition(self) -> None:
        board = [Partition(3, frozenset((1, 3)), order=(3, 1))]
        modules = {"0000:86:00.0": 1, "0000:87:00.0": 3}
        self.useFixture(nvfm.FabricManager(board, mode=2, modules=modules))
        self.assertEqual((3, 1), self.ours.read().partitions[0].order)
        functions = [PciAddress.parse(address) for address in ("0000:86:00.4", "0000:87:00.4")]
        self.assertEqual(-1, self.refused(self.ours.activate, 3, functions).code)
        self.ours.activate(3, functions[::-1])


class FaultsTest(FabricTestCase):
    def test_hanging(self) -> None:
        self.manager.says("hang")
        error, limit_s = processes.hung(
            lambda limit_s: self.refused(FabricManager("127.0.0.1", limit_s).read),
            lambda error: True,
        )
        self.assertIn(f"did not answer within {limit_s} s", str(error))

    def test_without_the_library(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("LD_LIBRARY_PATH", "/nowhere"))
        message = str(self.refused(self.ours.read))
        self.assertIn("library cannot be used: libnvfm.so", message)
        self.assertIn("install nvidia-fabricmanager and its devel package", message)

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

    def test_another_user_lets_it_wait(self) -> None:
        """A thread would wait for that process in each period."""
        if os.geteuid():
            self.skipTest("only root makes files of other users")
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.processes._PATIENCE_S", 0.1))
        process = self.roots.proc / "14"
        process.mkdir()
        os.mkfifo(process / "cmdline")
        os.chown(process, 65534, 65534)
        threads = threading.active_count()
        self.assertIsNone(fabric_manager.mode(self.roots))
        self.assertEqual(threads, threading.active_count())

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
from nova_gpu_fabric.host import fabric_manager, fabric_probe
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


class RecordedTest(RecordedTestCase):
    def test_by_the_library(self) -> None:
        """The pretended board is a real one, and so many NVLinks has each of its partitions."""
        self.useFixture(nvfm.AtHand())
        for record in self.each("partitions"):
            rows = [(number, frozenset(modules)) for number, _, modules in record["partitions"]]
            self.useFixture(nvfm.FabricManager(Partition(*row) for row in rows))
            read = FabricManager("127.0.0.1:6666", 60.0).read().partitions
            self.assertEqual(partitions.H100, read)
            self.assertEqual(partitions.MODULES, record.get("modules", partitions.MODULES))
            answer = fabric_probe.probe("127.0.0.1:6666", "1000", "partitions")
            for partition, (_, links, _) in zip(
                answer["partitions"], record["partitions"], strict=True
            ):
                if links is not None:
                    self.assertEqual(links, sum(gpu["links"] for gpu in partition["gpus"]))


KNOWN = {PciAddress.parse(address): module for address, module in MODULES.items()}
BOARD = frozenset(KNOWN)
SOME = min(KNOWN)


class ModulesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "gpu-modules.json")

    def test_a_later_release_wrote_more(self) -> None:
        self.path.write_text(json.dumps({"modules": MODULES, "more": {"is": ["known"]}}))
        self.assertEqual(KNOWN, modules.completed(self.path, BOARD, {}))

    def test_not_before_all_are_known(self) -> None:
        modules.keep(self.path, BOARD, {SOME: KNOWN[SOME]})
        self.assertFalse(self.path.exists())

    def test_void_where_the_cards_are_others(self) -> None:
        modules.keep(self.path, BOARD, KNOWN)
        others = BOARD - {SOME} | {PciAddress.parse("0000:e0:00.0")}
        for board in (others, BOARD - {SOME}):
            self.assertEqual({}, modules.completed(self.path, board, {}))
        other = {SOME: 9}  # a card says something else
        self.assertEqual(other, modules.completed(self.path, BOARD, other))
        modules.keep(self.path, BOARD, other)
        self.assertEqual({}, modules.completed(self.path, BOARD, {}))

    def test_what_it_was_not_that_wrote_it(self) -> None:
        for text in (
            *("{}", "[]", '{"modules": 3}', '{"modules": {"here": 1}}', "nonsense"),
            '{"modules": {"0000:86:00.0": 1, "0000:87:00.0": 1}}',
        ):
            with self.subTest(text):
                self.path.write_text(text)
                board = {PciAddress.parse(a) for a in ("0000:86:00.0", "0000:87:00.0")}
                self.assertEqual({}, modules.completed(self.path, board, {}))


class NvmlTest(base.BaseTestCase):
    def test_by_the_real_binding(self) -> None:
        (first, *_, last) = cards = nvml_cards()
        cards[-1] = dataclasses.replace(last, more={})  # one on no board
        self.useFixture(machines.Library(*cards))
        wanted = [PciAddress.parse(card.address) for card in (first, last)]
        self.assertEqual({wanted[0]: 1}, nvml.modules(wanted, 60))


class FailingCallsTest(FailingCallsTestCase):
    """Each system call on the file fails once, wherever it is made."""

    def test_modules(self) -> None:
        kind = Kind(
            lambda at: modules.keep(at / "m", [ONE, TWO], {ONE: 1, TWO: 2}),
            (lambda at: modules.keep(at / "m", [ONE, TWO], {ONE: 2, TWO: 1}),),
            lambda at: modules.completed(at / "m", [ONE, TWO], {}),
            {},  # NVML is asked
        )
        self.check_changes({"modules": kind})
        self.check_reads({"modules": kind})
