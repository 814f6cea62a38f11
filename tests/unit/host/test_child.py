# SPDX-License-Identifier: Apache-2.0
import pathlib
import subprocess
import sys

from oslotest import base

from nova_gpu.host import child
from tests.fixtures import processes


class TestRun(base.BaseTestCase):
    def test_in_a_process_that_eventlet_patched(self) -> None:
        """As nova-compute is before Nova 2026.1, where all classes of a timeout are other ones"""
        found = child.run([sys.executable, "-W", "ignore", "-c", _PATCHED], 400).decode()
        late, killed, babble = "TimedOut b'here\\n' -9", "Failed ended with -9: no message", 100_000
        self.assertEqual(
            [
                f"hangs: {late}",
                f"dies: {killed}",
                f"babbles: {babble}",
                f"ahead: {late}",
                f"a shell: {late}",
                f"a command: {late}",
                "others: True",
            ],
            found.splitlines(),
        )


_PATCHED = """
import eventlet; eventlet.monkey_patch()
import sys
from nova_gpu.host import child

hang = "print('here', flush=True); import time; time.sleep(1000)"
ahead = child.Ahead(f"import sys; sys.stdin.readline(); {hang}")
python = [sys.executable, "-I", "-S", "-c"]
ticks = []

def tick():
    while True:
        ticks.append(1)
        eventlet.sleep(0.05)

eventlet.spawn(tick)
for name, run in (
    ("hangs", lambda: child.run([*python, hang], 3)),
    ("dies", lambda: child.run([*python, "import os; os.kill(os.getpid(), 9)"], 200)),
    ("babbles", lambda: len(child.run([*python, "print('x' * 99_999)"], 200))),
    ("ahead", lambda: (ahead.start(), ahead.run(b"it\\n", 3))),
    ("a shell", lambda: child.run(["sh", "-c", "echo here; sleep 1000 & wait"], 3)),
    ("a command", lambda: child.status_and_output([*python, hang], 3, {})),
):
    try:
        print(f"{name}: {run()}")
    except child.TimedOut as error:
        print(f"{name}: TimedOut {error.output} {error.process.poll()}")
    except child.Failed as error:
        print(f"{name}: Failed {error}")
# The other green threads go on while a child hangs.
print("others:", len(ticks) > 9)
"""

# Says that it has begun, and what it was told
_READER = "import sys; print('begun', flush=True); print(sys.stdin.readline(), end='')"


class TestAhead(base.BaseTestCase):
    def ahead(self, source: str = _READER) -> child.Ahead:
        return child.Ahead(source)

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
