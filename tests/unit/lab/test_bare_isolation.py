# SPDX-License-Identifier: Apache-2.0
"""Real commands, in a root of this machine's own /usr."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import fixtures
import testtools

from lab.bare import base, isolation

_FIRST = pathlib.Path(isolation.__file__).with_name("first.py")


class FirstTest(testtools.TestCase):
    def first(self, *command: str) -> int:
        argv = [sys.executable, str(_FIRST), "/", *command]
        return subprocess.run(argv, capture_output=True, check=False).returncode

    def test_status_is_the_commands(self) -> None:
        for script, status in (("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)):
            self.assertEqual(status, self.first("sh", "-c", script))
        self.assertEqual(127, self.first("/no/such/program"))

    def test_asks_the_command_to_end(self) -> None:
        trap = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
        argv = [sys.executable, str(_FIRST), "/", "sh", "-c", trap]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
            assert child.stdout
            child.stdout.readline()
            child.terminate()
            self.assertEqual(9, child.wait(60))

    def test_asked_before_it_can_pass_it_on(self) -> None:
        def asked() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.kill(os.getpid(), signal.SIGTERM)

        # Whether the shell has its trap by then or not, it has been asked.
        script = "trap 'exit 143' TERM; while :; do sleep 0.05; done"
        argv = [sys.executable, str(_FIRST), "/", "sh", "-c", script]
        child = subprocess.Popen(argv, preexec_fn=asked, start_new_session=True)
        try:
            status: int | None = child.wait(60)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self.assertEqual(143, status)


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

    def test_is_asked_to_end(self) -> None:
        script = "trap 'echo asked >asked; exit 3' TERM; echo ready >ready; "
        with self.started(f"{script} while :; do sleep 0.05; done") as child:
            child.terminate()
            self.assertEqual(128 + signal.SIGTERM, child.wait(60))
        self.assertEqual("asked\n", (self.checkout / "asked").read_text())
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


class FolderTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.parent = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.parent / "etc").mkdir()
        (self.parent / "etc/hostname").write_text("bare\n")
        self.archive = self.parent / "root.tar"
        argv = ["tar", "-C", str(self.parent), "-cf", str(self.archive), "./etc"]
        subprocess.run(argv, check=True)

    def test_is_removed(self) -> None:
        with base.folder(self.parent, self.archive) as root:
            self.assertEqual("bare\n", (root / "etc/hostname").read_text())
        self.assertFalse(root.exists())

    def test_is_removed_where_it_cannot_be_made(self) -> None:
        self.archive.write_bytes(b"x" * 1024)
        error = self.assertRaises(base.RootFailed, self.enter)
        self.assertIn("tar ended with", str(error))
        self.assertEqual([], list(self.parent.glob("nova-gpu-bare-*")))

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

    def test_loop_devices_go_as_well(self) -> None:
        """Also where the file's path was another: it had it in mounts that are gone."""
        if reason := isolation.obstacle():
            self.skipTest(reason)
        with base.folder(self.parent, self.archive) as root:
            disk = root / "disk"
            disk.write_bytes(bytes(1 << 20))
            argv = ["losetup", "--find", "--show", str(disk)]
            made = subprocess.run(argv, capture_output=True, text=True, check=True)
            device = made.stdout.strip()
            self.addCleanup(subprocess.run, ["losetup", "--detach", device], capture_output=True)
            disk.rename(root / "renamed")
        listed = subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True)
        self.assertNotIn(f"{device} ", listed.stdout)

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
