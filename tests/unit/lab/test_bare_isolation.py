# SPDX-License-Identifier: Apache-2.0
"""Real commands, in a root of this machine's own /usr."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fixtures
import testtools

from lab.bare import base, isolation


class RunTest(testtools.TestCase):
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

    def test_nothing_outlives_the_command(self) -> None:
        script = "setsid sleep 600 >/dev/null 2>&1 & (setsid sh -c 'sleep 0.1' &); sleep 0.5; ! {}"
        # What its parent left is reaped.
        zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z '"
        self.assertEqual(0, self.run_in(script.format(zombies)))
        self.assertEqual([], self.inside())

    def inside(self) -> list[str]:
        """The processes whose root is this test's."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.path.samefile(entry / "root", self.root):
                        found.append(entry.name)
                except OSError:
                    continue
        return found


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
