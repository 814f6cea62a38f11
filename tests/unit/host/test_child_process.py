# SPDX-License-Identifier: Apache-2.0
import sys

from oslotest import base

from nova_gpu.host import child_process


class TestRun(base.BaseTestCase):
    def test_in_a_process_that_eventlet_patched(self) -> None:
        """As nova-compute is before Nova 2026.2, where all classes of a timeout are other ones"""
        output = child_process.run([sys.executable, "-W", "ignore", "-c", _PATCHED], 400).decode()
        late, killed, babble = "TimedOut b'here\\n' -9", "Failed ended with -9: no message", 100_000
        self.assertEqual(
            [
                f"hangs: {late}",
                f"dies: {killed}",
                f"babbles: {babble}",
                f"a shell: {late}",
                f"a command: {late}",
                "others: True",
            ],
            output.splitlines(),
        )


_PATCHED = """
import eventlet; eventlet.monkey_patch()
import sys
from nova_gpu.host import child_process

hang = "print('here', flush=True); import time; time.sleep(1000)"
python = [sys.executable, "-I", "-S", "-c"]
ticks = []

def tick():
    while True:
        ticks.append(1)
        eventlet.sleep(0.05)

eventlet.spawn(tick)
for name, run in (
    ("hangs", lambda: child_process.run([*python, hang], 3)),
    ("dies", lambda: child_process.run([*python, "import os; os.kill(os.getpid(), 9)"], 200)),
    ("babbles", lambda: len(child_process.run([*python, "print('x' * 99_999)"], 200))),
    ("a shell", lambda: child_process.run(["sh", "-c", "echo here; sleep 1000 & wait"], 3)),
    ("a command", lambda: child_process.status_and_output([*python, hang], 3, {})),
):
    try:
        print(f"{name}: {run()}")
    except child_process.TimedOut as error:
        print(f"{name}: TimedOut {error.output} {error.process.poll()}")
    except child_process.Failed as error:
        print(f"{name}: Failed {error}")
# The other green threads go on while a child hangs.
print("others:", len(ticks) > 9)
"""
