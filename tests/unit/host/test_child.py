# SPDX-License-Identifier: Apache-2.0
import pathlib
import subprocess
import sys

from oslotest import base

from nova_gpu.host import child
from tests.fixtures import processes


class TestRun(base.BaseTestCase):
    def run_python(self, source: str, timeout_s: float = 60) -> bytes:
        return child.run([sys.executable, "-I", "-c", source], timeout_s)

    def test_what_it_printed(self) -> None:
        self.assertEqual(b"7\n", self.run_python("print(7)"))

    def test_what_it_printed_before_it_hung(self) -> None:
        source = "import time; print('here', flush=True); time.sleep(1000)"
        error, limit_s = processes.hung(
            lambda limit_s: self.assertRaises(child.TimedOut, self.run_python, source, limit_s),
            lambda error: bool(error.output),
        )
        self.assertEqual(b"here\n", error.output)
        self.assertEqual(f"did not answer within {limit_s} s", str(error))
        self.assertIsNotNone(error.process.poll())

    def test_it_hangs_in_a_process_that_eventlet_patched(self) -> None:
        """As nova-compute is before Nova 2026.1, where all classes of a timeout are other ones"""
        source = (
            "import eventlet; eventlet.monkey_patch(); from nova_gpu.host import child\n"
            "try: child.run(['sleep', '1000'], 1)\n"
            "except child.TimedOut as error: print(error.process.poll())"
        )
        command = [sys.executable, "-W", "ignore", "-c", source]
        self.assertEqual(b"-9\n", child.run(command, 200))

    def test_failure(self) -> None:
        error = self.assertRaises(child.Failed, self.run_python, "raise SystemExit('no way')")
        self.assertEqual("ended with 1: no way", str(error))


# Says that it has begun, and what it was told
_READER = "import sys; print('begun', flush=True); print(sys.stdin.readline(), end='')"


class TestAhead(base.BaseTestCase):
    def ahead(self, source: str = _READER) -> child.Ahead:
        return child.Ahead(source)

    def test_without_a_start(self) -> None:
        ahead = self.ahead()
        self.assertEqual(b"begun\nthis\n", ahead.run(b"this\n", 60))

    def test_started_ahead_and_once(self) -> None:
        source = "import os, sys; sys.stdin.readline(); print(os.getpid())"
        ahead = self.ahead(source)
        ahead.start()
        process = ahead._process
        ahead.start()
        self.assertIs(process, ahead._process)
        assert process is not None
        self.assertEqual(process.pid, int(ahead.run(b"\n", 60)))
        self.assertNotEqual(process.pid, int(ahead.run(b"\n", 60)))

    def test_one_that_died_meanwhile(self) -> None:
        ahead = self.ahead()
        ahead.start()
        assert ahead._process is not None
        ahead._process.kill()
        ahead._process.wait()
        self.assertEqual(b"begun\nthis\n", ahead.run(b"this\n", 60))

    def test_ends_with_who_started_it(self) -> None:
        """Where that dies without a word, too. It only reads: of what it wrote it would end."""
        source = f"""
import os, pathlib, sys
sys.path.insert(0, {str(pathlib.Path(child.__file__).parents[2])!r})
from nova_gpu.host import child
ahead = child.Ahead("import sys; sys.stdin.read()")
ahead.start()
print(ahead._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
        done = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE)
        self.assertTrue(processes.ends(int(done.stdout)))
