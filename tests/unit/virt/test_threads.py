# SPDX-License-Identifier: Apache-2.0
"""Side by side, whatever becomes of one of them."""

from __future__ import annotations

import threading
import time

import fixtures
from oslo_context import context as request_context
from oslo_context import fixture as request_fixture
from oslotest import base

from nova_gpu.virt import threads


class ForEachTest(base.BaseTestCase):
    def test_all_at_once(self) -> None:
        together = threading.Barrier(4, timeout=200)  # BrokenBarrierError where one is not there
        threads.for_each(lambda _: together.wait() and None, range(4))

    def test_one_that_fails_is_told_at_the_end(self) -> None:
        done = []
        one_failed = threading.Event()

        def work(number: int) -> None:
            if number == 0:
                one_failed.set()
                raise ValueError("zero")
            one_failed.wait(200)
            done.append(number)

        error = self.assertRaises(ValueError, threads.for_each, work, range(3))
        self.assertEqual("zero", str(error))
        self.assertEqual([1, 2], sorted(done))

    def test_nobody_waits_for_idle_threads(self) -> None:
        """Each looks after that time whether it is to end."""
        self.useFixture(fixtures.MonkeyPatch("futurist._thread.ThreadWorker.MAX_IDLE_FOR", 1000))
        started = time.monotonic()
        threads.for_each(lambda _: None, range(4))
        self.assertLess(time.monotonic() - started, 200)

    def test_one_alone_needs_no_thread(self) -> None:
        found = []
        threads.for_each(lambda _: found.append(threading.current_thread()), ["it"])
        threads.for_each(lambda _: found.append(threading.current_thread()), [])
        self.assertEqual([threading.current_thread()], found)

    def test_they_carry_the_request(self) -> None:
        request_context.RequestContext(request_id="req-1")  # the thread's from here on
        self.addCleanup(setattr, request_context._request_store, "context", None)
        found = []
        threads.for_each(lambda _: found.append(request_context.get_current()), range(2))
        self.assertEqual(["req-1"] * 2, [each.request_id for each in found])

    def test_without_a_request(self) -> None:
        """As in a periodic task; other tests of the process may have left one."""
        self.useFixture(request_fixture.ClearRequestContext())
        found = []
        threads.for_each(lambda _: found.append(request_context.get_current()), range(2))
        self.assertEqual([None, None], found)
