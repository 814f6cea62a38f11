# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import pathlib
import subprocess
import sys
import threading

import fixtures
from oslotest import base

from nova_gpu.host.nvidia import nvml, nvml_turn
from tests.fixtures import nvml as machines

_OTHER = """
import pathlib, sys
from nova_gpu.host.nvidia import nvml_turn
nvml_turn._locked = pathlib.Path(sys.argv[1])
with nvml_turn.held_back(60):
    print(flush=True)
    input()
"""


class TurnTest(base.BaseTestCase):
    """The real probe, which the library notes when it begins"""

    def setUp(self) -> None:
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        nvml.report.cache_clear()
        self.began = folder / "began"
        self.library = self.useFixture(machines.Library())
        self.library.say(init=f"sh:touch {self.began}")
        # In the place of the file that all tests of this tree start
        self.locked = folder / "locked"
        self.locked.touch()
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml_turn._locked", self.locked))

    def test_while_a_card_is_divided(self) -> None:
        asking = threading.Thread(target=nvml.query, args=(60,))
        with nvml_turn.held_back(60):
            asking.start()
            asking.join(1)
            self.assertTrue(asking.is_alive())
            self.assertFalse(self.began.exists())
        asking.join()
        self.assertTrue(self.began.exists())

    def test_while_another_process_has_a_card_divided(self) -> None:
        command = [sys.executable, "-c", _OTHER, str(self.locked)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None and other.stdout is not None
            self.assertEqual(b"\n", other.stdout.readline())
            self.assertEqual({}, nvml.query(0.2))
            self.assertIn(f"{self.locked} stays locked", self.log.output)
            self.assertFalse(self.began.exists())
            other.communicate(b"\n")
        nvml.query(60)
        self.assertTrue(self.began.exists())

    def test_who_asks_takes_no_turn_from_others_who_ask(self) -> None:
        with self.locked.open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)
            nvml.query(60)
        self.assertTrue(self.began.exists())

    def test_nobody_holds_it_back_for_ever(self) -> None:
        """Any user of the host may lock a file that can be read."""
        with self.locked.open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)
            with nvml_turn.held_back(0.2), self.locked.open() as third:
                fcntl.flock(other, fcntl.LOCK_UN)
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it went on without it
