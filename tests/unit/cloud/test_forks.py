# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import tempfile
import threading
import time
import unittest
from unittest import mock

import fixtures
import testtools

from tests.cloud import forks
from tests.fixtures import economy, threads


class Inner:
    """What the tests here run, where no loader finds them"""

    class WarmUp(testtools.TestCase):
        run_tests_with = testtools.RunTest

        def test(self) -> None:
            pass

    class Prepared(testtools.TestCase):
        run_tests_with = forks.RunTest

        def setUp(self) -> None:
            super().setUp()
            self.process = os.getpid()
            self.seen = ["setUp"]
            self.file = pathlib.Path(tempfile.mkdtemp()) / "file"
            self.file.write_text("setUp")

        def _change(self) -> None:
            self.assertEqual((["setUp"], "setUp"), (self.seen, self.file.read_text()))
            self.assertEqual([self.file], list(self.file.parent.iterdir()))
            self.seen.append("changed")
            self.file.write_text("changed")
            (self.file.parent / "another").touch()

        test_one = test_another = _change

        def test_parent(self) -> None:
            self.assertEqual(os.getppid(), self.process)

        def test_fails(self) -> None:
            self.fail("as it must")

        def test_skips(self) -> None:
            self.skipTest("nothing to do")

        def test_dies(self) -> None:
            os._exit(3)

        def test_fails_at_its_end(self) -> None:
            self.addCleanup(self.fail, "at its end")


Inner.Prepared.WARM_UP = Inner.WarmUp


class Owner:
    """Has a thread, which says whose process it is in."""

    def __init__(self) -> None:
        self.said: list[int] = []
        self._end = threading.Event()

    def start_thread(self) -> None:
        self._end.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop_thread(self) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        self.said.append(os.getpid())
        self._end.wait()


class ForksTest(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(fixtures.EnvironmentVariable("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1"))
        self.addCleanup(forks.end)

    def run_tests(self, *names: str, of: type = Inner.Prepared) -> unittest.TestResult:
        result = unittest.TestResult()
        for name in names:
            of(name).run(result)
        self.assertEqual(len(names), result.testsRun)
        return result

    def test_each_begins_as_set_up_left_it(self) -> None:
        result = self.run_tests("test_one", "test_another", "test_one", "test_parent")
        self.assertTrue(result.wasSuccessful(), result)

    def test_what_a_test_says(self) -> None:
        result = self.run_tests("test_fails", "test_skips", "test_fails_at_its_end", "test_one")
        failed = [text for _, text in result.failures]
        self.assertEqual([], result.errors)
        self.assertEqual(2, len(failed), failed)
        self.assertIn("AssertionError: as it must", failed[0])
        self.assertIn("AssertionError: at its end", failed[1])
        self.assertEqual(["nothing to do"], [reason for _, reason in result.skipped])

    def test_a_process_that_dies(self) -> None:
        result = self.run_tests("test_dies", "test_one")
        ((test, text),) = result.errors
        self.assertEqual("test_dies", test._testMethodName)
        self.assertIn("ended with 3", text)

    def test_set_up_that_fails_fails_each(self) -> None:
        class Failing(Inner.Prepared):
            def setUp(self) -> None:
                super().setUp()
                raise ValueError("no such card")

        result = self.run_tests("test_one", "test_another", of=Failing)
        self.assertEqual(2, len(result.errors))
        for _, text in result.errors:
            self.assertIn("ValueError: no such card", text)

    def test_threads_are_begun_anew(self) -> None:
        class Threaded(Inner.Prepared):
            def setUp(self) -> None:
                super().setUp()
                self.owner = Owner()
                self.owner.start_thread()
                threads.owners.add(self.owner)

            def test_one(self) -> None:
                self.owner.stop_thread()
                self.assertEqual([self.process, os.getpid()], self.owner.said)

        result = self.run_tests("test_one", "test_one", of=Threaded)
        self.assertTrue(result.wasSuccessful(), result)

    def test_who_listens_holds_no_lock(self) -> None:
        """Else a fork that is made meanwhile stands still where it wants that lock."""
        lock, end = threading.Lock(), threading.Event()

        def listen() -> None:
            while not end.is_set():
                with lock:
                    time.sleep(0.01)
                economy.wait_for_message(0.001)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(economy.hold_up_listeners, False)
        self.addCleanup(end.set)
        forks._quiet()
        self.assertEqual([False] * 50, [self._is_locked(lock) for _ in range(50)])

    def _is_locked(self, lock: threading.Lock) -> bool:
        time.sleep(0.002)
        return lock.locked()

    def test_a_thread_at_work_is_named(self) -> None:
        class Busy(Inner.Prepared):
            def setUp(self) -> None:
                super().setUp()
                end = threading.Event()
                threading.Thread(target=end.wait, name="worker", daemon=True).start()

        with mock.patch.object(forks, "_IDLE_S", 0.1):
            result = self.run_tests("test_one", of=Busy)
        ((_, text),) = result.errors
        self.assertRegex(text, r"NotIdle: still at work after .*: worker")

    def test_another_class_has_another_process(self) -> None:
        class Other(Inner.Prepared):
            pass

        with mock.patch.object(forks.process, "fork", wraps=forks.process.fork) as fork:
            self.run_tests("test_one", "test_another")
            self.run_tests("test_one", of=Other)
        self.assertEqual(2, fork.call_count)
