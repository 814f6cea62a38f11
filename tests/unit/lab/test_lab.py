# SPDX-License-Identifier: Apache-2.0
"""What could harm the machine on which the lab runs, and what its guide is compared with"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fixtures
import testtools

from lab.bare import base, isolation
from lab.bare.store import Store
from lab.cloud import compute, guide, leftovers, page, settings

LAB = leftovers.tag(pathlib.Path("/var/lib/a lab"))


class RunTest(testtools.TestCase):
    """Real commands, in a root of this machine's own /usr."""

    def setUp(self) -> None:
        super().setUp()
        if reason := isolation.obstacle():
            self.skipTest(reason)
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.root = self.folder / "root"
        self.checkout = self.root / isolation.CHECKOUT.strip("/")
        self.checkout.mkdir(parents=True)
        for name in ("dev", "proc", "run", "sys", "tmp"):
            (self.root / name).mkdir()
        for name in ("bin", "lib", "lib64", "sbin"):
            (self.root / name).symlink_to(f"usr/{name}")

    def run_in(self, script: str, **variables: str) -> int:
        usr = [pathlib.Path("/usr")]
        return isolation.run(self.root, ["sh", "-euc", script], variables, usr)

    def test_a_root_of_its_own(self) -> None:
        script = (
            f'test "$(pwd)" = {isolation.CHECKOUT}; test "$GIVEN" = yes;'
            'test -z "${PYTHONPATH-}";'
            'test "$(cat /proc/1/comm)" = python3; test ! -e /etc; test ! -e /.old;'
            "test -c /dev/null; test -d /run/lock; ! touch /usr/x 2>/dev/null;"
            'test "$(stat -f -c %T /tmp)" = tmpfs; test -k /tmp;'
            "mkdir /tmp/m; mount -t tmpfs tmpfs /tmp/m; exit 5"
        )
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", "/x"))
        before = pathlib.Path("/proc/self/mountinfo").read_text()
        self.assertEqual(5, self.run_in(script, GIVEN="yes"))
        self.assertEqual(before, pathlib.Path("/proc/self/mountinfo").read_text())
        base.remove(self.root)
        self.assertFalse(self.root.exists())
        self.assertTrue(pathlib.Path("/usr/bin").exists())


class FolderTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.parent = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.parent / "etc").mkdir()
        (self.parent / "etc/hostname").write_text("bare\n")

    def test_nothing_is_removed_through_a_mount(self) -> None:
        if reason := isolation.obstacle():
            self.skipTest(reason)
        code = (
            "import pathlib, subprocess, sys; from lab.bare import base\n"
            "root = pathlib.Path(sys.argv[1]); (root / 'in').mkdir(parents=True)\n"
            "subprocess.run(['mount', '--bind', sys.argv[2], str(root / 'in')], check=True)\n"
            "try:\n    base.remove(root)\n"
            "except base.RootFailed as error:\n    print(error)\n"
        )
        argv = ["unshare", "--mount", sys.executable, "-c", code, str(self.parent / "root")]
        environ = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
        ran = subprocess.run(
            [*argv, str(self.parent / "etc")], env=environ, capture_output=True, text=True
        )
        self.assertIn("root/in is a mount; umount it", ran.stdout)
        self.assertTrue((self.parent / "etc/hostname").exists())


class StoreTest(testtools.TestCase):
    def test_what_another_user_put_there_or_changed_is_not_found(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        store, file = Store(folder / "store"), folder / "file"
        file.write_bytes(b"content")
        path = store.put("a", file)
        self.assertEqual(path, store.find("a"))
        path.write_bytes(b"CONTENT")
        self.assertIsNone(store.find("a"))
        path = store.put("a", file)
        path.unlink()
        path.symlink_to(file)
        self.assertIsNone(store.find("a"))
        if os.geteuid() == 0:
            path.unlink()
            path.write_bytes(b"content")
            os.chown(path, 65534, 65534)
            self.assertIsNone(store.find("a"))


class EndTest(testtools.TestCase):
    """Real processes: found by their environment, ended, and only those.

    The /proc they are looked for in has these alone, so that no mistake in what is tested can reach
    any other process of the machine.
    """

    def setUp(self) -> None:
        super().setUp()
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def _start(self, lab: str, code: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", f"{code}; print(flush=True); import time; time.sleep(1000)"],
            env={**os.environ, leftovers.ENVIRONMENT: lab},
            stdout=subprocess.PIPE,
        )
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        assert child.stdout is not None
        child.stdout.readline()
        (self.proc / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        return child

    def test_ends_its_own_also_those_that_ignore_sigterm(self) -> None:
        other = leftovers.tag(pathlib.Path("/elsewhere"))
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        mine = [self._start(LAB, "pass"), self._start(LAB, stubborn)]
        stranger = self._start(other, "pass")

        ended = leftovers.end(LAB, patience_s=0.5, proc=self.proc)

        self.assertEqual(sorted(child.pid for child in mine), [process.pid for process in ended])
        self.assertEqual([], leftovers.processes(LAB, self.proc))
        self.assertIsNone(stranger.poll())


class DifferenceTest(testtools.TestCase):
    _PRINTED = (
        "+------+------+\n| Name | GPUs |\n+------+------+\n| pair |    2 |\n+------+------+\n"
    )

    def test_other(self) -> None:
        for line, expected in (
            ("| pair | 3 |", ("...", "| pair | 3 |", "...")),
            ("| Name | GPUs |", ("| Name | GPUs |", "...")),
            # The right lines, in another order.
            ("| Name | GPUs |", ("...", "| pair | 2 |", "...", "| Name | GPUs |", "...")),
            # A part of a line is not the line.
            ("| pair", ("...", "| pair", "...")),
            # Dots are no way to leave lines out of the midst of another.
            ("| Name ... 2 |", ("...", "| Name ... 2 |", "...")),
        ):
            difference = page.difference(expected, self._PRINTED)
            self.assertIn(f"lacks the line `{line}`", difference or "", expected)


class GuideTest(testtools.TestCase):
    def test_nothing_is_the_hosts_own(self) -> None:
        """No path of the pages' is left that the lab would read or write on the machine: where a
        command runs on a compute host, /etc/nova is that host's.
        """
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        lab = settings.Lab(folder, settings.Ports(), "secret", computes=2)
        table = guide.places(lab)
        pages = [block for path in guide.PAGES for block in guide.blocks_of(path)]
        self.assertIn(str(compute.ETC), compute.libvirt(lab.hosts[0]).covers)
        for command in (command for block in pages for command in block.commands):
            done = guide.translated(command.text, command.prompt, table)
            own = ("/opt/",) if "@compute" in command.prompt else ("/opt/", "/etc/nova")
            for path in own:
                self.assertNotIn(path, done.replace(f"{folder}/etc/nova", ""))
