# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import os
import pathlib
import stat
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
nvml_turn.share(pathlib.Path(sys.argv[1]))
with nvml_turn.held_back(60):
    print(flush=True)
    input()
"""

_NOBODY = 65534


def _owner_and_mode(path: pathlib.Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, stat.S_IMODE(status.st_mode)


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
        self.locked = folder / "locked"
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml_turn._file", None))
        nvml_turn.share(self.locked)

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
        self.locked.touch()
        with self.locked.open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)
            nvml.query(60)
        self.assertTrue(self.began.exists())

    def test_nobody_but_its_owner_and_root_can_lock_it(self) -> None:
        """Who can open a file can lock it, and the cards' health would not be known."""
        with nvml_turn.held_back(60):
            self.assertEqual(0o600, stat.S_IMODE(self.locked.stat().st_mode))
        self.locked.chmod(0o666)  # as somebody's umask or chmod left it
        nvml.query(60)
        self.assertEqual(0o600, stat.S_IMODE(self.locked.stat().st_mode))

    def test_root_leaves_it_to_the_owner_of_the_folder(self) -> None:
        if os.geteuid():
            self.skipTest("only root can make another user's file")
        os.chown(self.locked.parent, _NOBODY, _NOBODY)
        nvml.query(60)
        self.assertEqual(_NOBODY, self.locked.stat().st_uid)

    def test_what_is_linked_to_is_left_as_it_is(self) -> None:
        """nova could have root open up, or close, any file."""
        if os.geteuid():
            self.skipTest("only root can make another user's file")
        os.chown(self.locked.parent, _NOBODY, _NOBODY)
        theirs = self.locked.with_name("theirs")
        theirs.touch()
        theirs.chmod(0o644)
        for link in (os.symlink, os.link):
            with self.subTest(link=link.__name__):
                link(theirs, self.locked)
                nvml.query(60)
                self.assertEqual((0, 0o644), _owner_and_mode(theirs))
                self.locked.unlink()
        self.assertTrue(self.began.exists())

    def test_who_may_not_open_it_asks_without_a_turn(self) -> None:
        nvml_turn.share(self.locked / "a folder that is not there")
        nvml.query(60)
        self.assertTrue(self.began.exists())

    def test_nobody_holds_it_back_for_ever(self) -> None:
        self.locked.touch()
        with self.locked.open() as other:
            fcntl.flock(other, fcntl.LOCK_SH)
            with nvml_turn.held_back(0.2), self.locked.open() as third:
                fcntl.flock(other, fcntl.LOCK_UN)
                fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it went on without it
