# SPDX-License-Identifier: Apache-2.0
"""Real commands, in a root of this machine's own /usr."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import fixtures
import testtools

from lab.bare import base, isolation, network


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

    def test_a_network_without_a_way_out(self) -> None:
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / network.PACKAGE).write_text("#!/bin/sh\necho no tap >&2; exit 3\n")
        (programs / network.PACKAGE).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self.useFixture(fixtures.EnvironmentVariable("PATH", path))
        self.assertEqual("slirp4netns ended with 3: no tap", network.obstacle())
        usr = [pathlib.Path("/usr")]
        with testtools.ExpectedException(network.NetworkFailed):
            isolation.run(self.root, ["touch", "ran"], {}, usr, has_network=True)
        self.assertEqual([], [*self.inside(), *self.checkout.iterdir()])

    def test_nothing_outlives_the_command(self) -> None:
        script = "setsid sleep 600 >/dev/null 2>&1 & (setsid sh -c 'sleep 0.1' &); sleep 0.5; ! {}"
        # What its parent left is reaped.
        zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -q ') Z '"
        self.assertEqual(0, self.run_in(script.format(zombies)))
        self.assertEqual([], self.inside())

    def test_is_killed_with_who_runs_it(self) -> None:
        with self.started("echo ready >ready; sleep 600") as child:
            self.assertNotEqual([], self.inside())
            child.kill()
            child.wait()
        deadline = time.monotonic() + 200
        while self.inside() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual([], self.inside())

    def started(self, script: str) -> subprocess.Popen[bytes]:
        code = (
            "import pathlib, sys; from lab.bare import isolation;"
            "sys.exit(isolation.run(pathlib.Path(sys.argv[1]), ['sh', '-euc', sys.argv[2]], {},"
            " [pathlib.Path('/usr')]))"
        )
        environ = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
        argv = [sys.executable, "-c", code, str(self.root), script]
        child = subprocess.Popen(argv, env=environ)
        self.addCleanup(child.kill)
        ready = self.checkout / "ready"
        deadline = time.monotonic() + 200
        while not ready.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertTrue(ready.exists())
        return child

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


class SettingsTest(testtools.TestCase):
    def test_this_machine_as_the_root_reaches_it(self) -> None:
        for text, inside in (
            ("http://127.0.0.1:3128", "http://198.18.0.2:3128"),
            (
                'Acquire::http::Proxy "http://localhost/";',
                'Acquire::http::Proxy "http://198.18.0.2/";',
            ),
            ("URIs: http://[::1]:8080/debian", "URIs: http://198.18.0.2:8080/debian"),
            ("https://localhost.example.org/simple", None),
            ("file:///opt/127.0.0.1/simple", None),
        ):
            self.assertEqual(inside or text, network.inside(text))
        resolvers = "search example.org\nnameserver 127.0.0.53\nnameserver ::1\noptions edns0\n"
        self.assertEqual(
            "search example.org\noptions edns0\nnameserver 198.18.0.3\n",
            network.resolv_conf(resolvers),
        )


class FolderTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.parent = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.parent / "etc").mkdir()
        (self.parent / "etc/hostname").write_text("bare\n")
        self.archive = self.parent / "root.tar"
        argv = ["tar", "-C", str(self.parent), "-cf", str(self.archive), "./etc"]
        subprocess.run(argv, check=True)

    def enter(self) -> None:
        with base.folder(self.parent, self.archive):
            pass

    def test_one_that_is_in_use_stays(self) -> None:
        now = time.time()
        with base.folder(self.parent, self.archive) as root:
            left = self.parent / "nova-gpu-bare-left"
            left.mkdir()
            self.useFixture(fixtures.MonkeyPatch("time.time", lambda: now + 3600))
            self.enter()
            self.assertTrue(root.exists())
            self.assertFalse(left.exists())

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
