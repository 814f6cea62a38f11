# SPDX-License-Identifier: Apache-2.0
"""What of a saved VM needs no VM."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import unittest
from collections.abc import Sequence

import fixtures
import testtools

from lab.vm import boot, build_cache, cards, monitor, saved
from lab.vm import vm as vms
from tests.vfio import benches

VM = vms.VM(
    *(pathlib.Path(each) for each in ("/a/emulator-1/qemu", "/a/system-1", "/a/env-1", "/tree")),
    prepared="some.module",
)
RESUMED = dataclasses.replace(VM, prepared=None, saved=pathlib.Path("/saved"))


class KeyTest(unittest.TestCase):
    """What the state is kept by."""

    def test_the_same_elsewhere(self) -> None:
        other = dataclasses.replace(
            VM,
            emulator=pathlib.Path("/b/emulator-1/qemu"),
            system=pathlib.Path("/b/system-1"),
            environment=pathlib.Path("/b/env-1"),
            tree=pathlib.Path("/other"),
        )
        self.assertEqual(saved._arguments(VM), saved._arguments(other))

    def test_both_of_a_pair(self) -> None:
        one, other = (
            saved._arguments(dataclasses.replace(VM, line=vms.Line(*each)))
            for each in ((1, 1001, 1002), (2, 1002, 1001))
        )
        self.assertEqual(one, other)
        self.assertNotEqual(one, saved._arguments(VM))

    def test_another_where_anything_else_is(self) -> None:
        others = [
            dataclasses.replace(VM, emulator=pathlib.Path("/a/emulator-2/qemu")),
            dataclasses.replace(VM, system=pathlib.Path("/a/system-2")),
            dataclasses.replace(VM, environment=pathlib.Path("/a/env-2")),
            dataclasses.replace(VM, memory_mib=4096),
            dataclasses.replace(VM, prepared="another.module"),
        ]
        for each in others:
            self.assertNotEqual(saved._arguments(VM), saved._arguments(each))


class ImportedTest(unittest.TestCase):
    def test_nothing_that_the_tests_are_about(self) -> None:
        """It would be that of the day when the VM was saved."""
        own = ("benchmarks", "lab", "nova_gpu", "osc_gpu", "tests", "tools")
        script = (
            f"import sys, {benches.IMPORTED}\n"
            f"print(*(each for each in sys.modules if each.partition('.')[0] in {own}))"
        )
        argv = [sys.executable, "-W", "ignore", "-c", script]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(build_cache.ROOT)}
        said = subprocess.run(
            argv, check=True, capture_output=True, text=True, cwd="/", env=environment
        ).stdout
        parents = [benches.IMPORTED.rsplit(".", count)[0] for count in (2, 1, 0)]
        self.assertEqual(parents, said.split())


class ArgumentsTest(unittest.TestCase):
    def test_it_goes_on_with_the_machine_it_was_saved_with(self) -> None:
        """All devices but those that are plugged when it goes on"""
        before, after, plain = (
            _devices(each) for each in (VM, RESUMED, dataclasses.replace(VM, prepared=None))
        )
        self.assertEqual(before, after)
        late = [each["driver"] for each in cards.late()]
        self.assertEqual(["nvme"], late)
        left = [each for each in plain if each not in after]
        self.assertEqual(late, [each.partition(",")[0] for each in left])
        options = (f"{name}={value}" for name, value in cards.late()[0].items())
        self.assertEqual(f"driver={left[0]}".split(","), list(options))

    def test_what_it_has_changed_is_below_what_it_changes_now(self) -> None:
        words = RESUMED.arguments(pathlib.Path("out"), pathlib.Path("console"))
        (disk,) = (each for each in words if "id=system," in each)
        self.assertIn("file=/saved/system.qcow2,format=qcow2", disk)
        self.assertIn("backing.file.filename=/a/system-1/system.ext4", disk)
        self.assertIn("snapshot=on", disk)
        self.assertIn("exec:cat /saved/state", words)


def _devices(vm: vms.VM) -> Sequence[str]:
    words = vm.arguments(pathlib.Path("out"), pathlib.Path("console"))
    return [each for word, each in itertools.pairwise(words) if word == "-device"]


class ModuleTest(testtools.TestCase):
    def test_it_is_told_with_its_environment(self) -> None:
        out = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        boot.write_module(out, ["some.module", "two words"], {"NAME": "it's"})
        job = json.loads((out / "module.json").read_text())
        self.assertEqual(["some.module", "two words"], job["words"])
        found = [job["environment"][name] for name in ("NAME", "PYTHONPATH")]
        self.assertEqual(["it's", "/project"], found)


class MonitorTest(unittest.TestCase):
    """Against one that answers as QEMU does."""

    def setUp(self) -> None:
        self.monitor = monitor.Monitor()
        self.addCleanup(self.monitor.close)
        self.asked: list[str] = []

    def answer(self, *answers: object) -> None:
        """To the questions after the first, on which the monitor insists"""
        qmp, _ = (socket.socket(fileno=os.dup(fd)) for fd in self.monitor.fds)

        def serve() -> None:
            with qmp, qmp.makefile("rw") as stream:
                stream.write('{"QMP": {}}\n')
                for each in ({"return": {}}, *answers):
                    stream.flush()
                    self.asked.append(json.loads(stream.readline())["execute"])
                    stream.write('{"event": "STOP"}\n' + json.dumps(each) + "\n")
                stream.flush()

        thread = threading.Thread(target=serve)
        thread.start()
        self.addCleanup(thread.join)
        self.monitor.begin()

    def test_answers_between_events(self) -> None:
        self.answer({"return": {"status": "running"}})
        self.assertEqual({"status": "running"}, self.monitor.ask("query-status"))
        self.assertEqual(["qmp_capabilities", "query-status"], self.asked)

    def test_refused_in_its_own_words(self) -> None:
        self.answer({"error": {"desc": "no such device"}})
        with self.assertRaisesRegex(monitor.Refused, "device_add: no such device"):
            self.monitor.ask("device_add", driver="nvme")

    def test_it_has_ended(self) -> None:
        self.answer()
        with self.assertRaises(monitor.Refused):
            self.monitor.ask("query-status")

    def test_until_it_is_so_or_cannot_become_so(self) -> None:
        self.answer(*({"return": {"status": each}} for each in ("active", "completed", "failed")))
        self.monitor.wait("query-migrate", "completed", 60)
        with self.assertRaisesRegex(monitor.Refused, "failed and not completed"):
            self.monitor.wait("query-migrate", "completed", 60)
