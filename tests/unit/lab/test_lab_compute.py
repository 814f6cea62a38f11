# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any, cast

import fixtures
import testtools

from lab.bare import isolation
from lab.cloud import cgroups, cli, compute, leftovers, libvirtd, process, rest, settings, steps


class Answers:
    """The API's list of services, one answer after another, and Placement's providers."""

    def __init__(self, *services: dict[str, str] | None) -> None:
        self.services = list(services)
        self.asked = 0

    def get(self, service: str, path: str) -> Any:
        if service == "placement":
            return {"resource_providers": [{"name": "compute-1_gpu_10de_1091_lxc"}]}
        self.asked += 1
        answer = self.services.pop(0) if len(self.services) > 1 else self.services[0]
        if answer is None:
            raise OSError("timed out")
        return {"services": [answer] if answer else []}


class HostsTestCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.lab = settings.Lab(folder, settings.Ports(), "secret", computes=2)
        self.first, self.second = self.lab.hosts


class HostTest(HostsTestCase):
    def test_of_its_own(self) -> None:
        for one, two in (
            (self.first.name, self.second.name),
            (self.first.service, self.second.service),
            (self.first.folder, self.second.folder),
            (self.first.tag, self.second.tag),
            (self.first.tree, self.second.tree),
            (self.first.state, self.second.state),
            (self.first.etc, self.second.etc),
        ):
            self.assertNotEqual(one, two)
        self.assertEqual(3, len(set(process.tags(self.lab))))

    def test_named(self) -> None:
        self.assertEqual(self.first, compute.named(self.lab, None))
        self.assertEqual(self.second, compute.named(self.lab, "compute-2"))
        error = self.assertRaises(steps.Failed, compute.named, self.lab, "compute-3")
        self.assertIn("no compute host compute-3, only compute-1, compute-2", str(error))

    def test_is_off(self) -> None:
        self.assertFalse(compute.is_on(self.first))


class StartedTest(HostsTestCase):
    """Until it has told of its resources since this start."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("lab.cloud.compute.start", lambda host: None))
        self.useFixture(fixtures.MonkeyPatch("lab.cloud.process.check", lambda *_: None))
        self.useFixture(fixtures.MonkeyPatch("time.sleep", lambda seconds: None))

    def started(self, *services: dict[str, str] | None) -> int:
        answers = Answers(*services)
        compute.started(self.first, cast(rest.Client, answers))
        return answers.asked

    def test_what_was_before_does_not_count(self) -> None:
        old = {"state": "up", "updated_at": "2026-01-01T00:00:00.000000"}
        new = {"state": "up", "updated_at": "2999-01-01T00:00:00.000000"}
        self.assertEqual(3, self.started(old, old, new))

    def test_not_known_yet(self) -> None:
        new = {"state": "up", "updated_at": "2999-01-01T00:00:00.000000"}
        never = {"state": "down", "updated_at": ""}
        self.assertEqual(4, self.started({}, never, None, new))

    def test_forced_down(self) -> None:
        new = {"state": "down", "updated_at": "2999-01-01T00:00:00.000000"}
        self.assertEqual(1, self.started(new))

    def test_wait_until_down(self) -> None:
        up, down = {"state": "up"}, {"state": "down"}
        answers = Answers(up, up, down)
        compute.wait_until_down(self.first, cast(rest.Client, answers))
        self.assertEqual(3, answers.asked)


class KillTest(HostsTestCase):
    def test_without_a_word(self) -> None:
        code = (
            "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3));"
            "print(flush=True); sys.stdin.read()"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, leftovers.ENVIRONMENT: self.second.tag},
        )
        self.addCleanup(child.communicate)
        assert child.stdout
        child.stdout.readline()
        path = process.pid_file(self.lab, self.second.service)
        path.parent.mkdir()
        path.write_text(f"{child.pid}\n")
        self.assertEqual(child.pid, process.pid(self.lab, self.second.service))
        process.kill(self.lab, self.second.service)
        self.assertEqual(-signal.SIGKILL, child.wait(60))
        self.assertFalse(path.exists())


class NamespaceTest(HostsTestCase):
    def script(self, hostname: str | None) -> str:
        lv = libvirtd.PrivateLibvirtd(self.first.folder, (), hostname=hostname)
        return "\n".join(lv._script(cgroups.Layout.V1))

    def test_a_name_of_its_own(self) -> None:
        self.assertIn("hostname compute-1\n", self.script("compute-1"))
        self.assertNotIn("hostname", self.script(None))

    def test_controllers_are_known_by_a_mount(self) -> None:
        """Whatever they do with their environment."""
        if reason := isolation.obstacle():
            self.skipTest(reason)
        script = "cat /proc/self/mountinfo"
        argv = process._apart(self.lab, ["env", "--ignore-environment", "sh", "-c", script])
        seen = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        self.assertIn(self.lab.tag, [mount.source for mount in cgroups.mounts(seen)])
        self.assertNotIn(self.lab.tag, pathlib.Path("/proc/self/mountinfo").read_text())


class CommandLineTest(testtools.TestCase):
    def parsed(self, *words: str) -> Any:
        return cli._parser().parse_args(words)

    def test_command_on_a_host(self) -> None:
        found = self.parsed("compute", "--host", "compute-2", "--", "virsh", "-c", "lxc:///")
        self.assertEqual("compute-2", found.host)
        self.assertEqual(["virsh", "-c", "lxc:///"], found.command)
        self.assertEqual([], self.parsed("compute").command)

    def test_two_hosts_with_the_same_cards(self) -> None:
        found = self.parsed("up", "--real", "--computes", "2")
        self.assertIn("one compute host", str(self.assertRaises(steps.Failed, found.run, found)))

    def test_hosts(self) -> None:
        self.assertEqual(2, self.parsed("up", "--computes", "2").computes)
        self.assertIsNone(self.parsed("up").computes)
        for verb in ("stop-compute", "start-compute", "power-off", "power-on"):
            self.assertIsNone(self.parsed(verb).host)
            self.assertEqual("compute-2", self.parsed(verb, "compute-2").host)
