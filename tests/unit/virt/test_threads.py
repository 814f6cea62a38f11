# SPDX-License-Identifier: Apache-2.0
"""Side by side, whatever becomes of one of them."""

from __future__ import annotations

import sys
import threading
import time

import fixtures
import nova.privsep
from oslo_config import fixture as config_fixture
from oslo_context import context as request_context
from oslo_context import fixture as request_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.host import child_process
from nova_gpu.virt import threads


class ForEachTest(base.BaseTestCase):
    def test_all_at_once(self) -> None:
        """Nobody waits for idle threads: each looks after that time whether it is to end."""
        self.useFixture(fixtures.MonkeyPatch("futurist._thread.ThreadWorker.MAX_IDLE_FOR", 1000))
        started = time.monotonic()
        together = threading.Barrier(4, timeout=200)  # BrokenBarrierError where one is not there
        threads.for_each(lambda _: together.wait() and None, range(4))
        self.assertLess(time.monotonic() - started, 200)

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

    def test_they_carry_the_request(self) -> None:
        """Or none, as in a periodic task; other tests of the process may have left one."""
        self.useFixture(request_fixture.ClearRequestContext())
        contexts = []
        for _ in range(2):
            threads.for_each(lambda _: contexts.append(request_context.get_current()), range(2))
            request_context.RequestContext(request_id="req-1")  # the thread's from here on
        self.addCleanup(setattr, request_context._request_store, "context", None)
        named = [context and context.request_id for context in contexts]
        self.assertEqual([None, None, "req-1", "req-1"], named)

    def test_in_a_process_that_eventlet_patched(self) -> None:
        """As nova-compute is before Nova 2026.2, with all that waits in it"""
        output = child_process.run([sys.executable, "-W", "ignore", "-c", _PATCHED], 400).decode()
        self.assertEqual("[0, 1, 2] zero late False None 2\n", output)


_PATCHED = """
import eventlet; eventlet.monkey_patch()
import threading
import time
from concurrent import futures
from nova import utils
utils.concurrency_mode_threading = lambda: False
from nova_gpu.host import service_socket
from nova_gpu.host.roots import Roots
from nova_gpu.notifications import Outbox
from nova_gpu.virt import threads

together, met = threading.Event(), []

def meet(number):
    met.append(number)
    together.set() if len(met) == 3 else together.wait(200)

def fail(number):
    raise ValueError("zero")

threads.for_each(meet, range(3))
try:
    threads.for_each(fail, range(2))
except ValueError as error:
    failure = error
try:
    threads.begin(lambda _: time.sleep(1000), None).result(0.1)
except futures.TimeoutError:
    waited = "late"
lock = threading.Lock()
lock.acquire()
got = lock.acquire(timeout=0.1)
sent, outbox = [], Outbox()
outbox.put(lambda: sent.append(1))
outbox.put(lambda: sent.append(2))
other = service_socket.claim(Roots())
while len(sent) < 2:
    time.sleep(0.01)
print(sorted(met), failure, waited, got, other, len(sent))
"""


class ShareTest(base.BaseTestCase):
    def share(self, size: int) -> threads.DaemonShare:
        group = nova.privsep.sys_admin_pctxt.cfg_section
        config = self.useFixture(config_fixture.Config(CONF)).config
        config(group=group, thread_pool_size=size)
        return threads.DaemonShare()

    def is_free(self, share: threads.DaemonShare, wait_s: float) -> bool:
        """Whether somebody else gets one while the caller has what it has

        :param wait_s: of one that is free, long enough for a busy machine
        """
        got = threading.Event()

        def take() -> None:
            with share.one():
                got.set()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(wait_s)
        self.waiting = thread
        return got.is_set()

    def test_half_is_left_to_nova(self) -> None:
        self.assertTrue(self.is_free(self.share(1), 200), "one there is always")
        share = self.share(2)
        self.assertTrue(self.is_free(share, 200))
        with share.one():
            self.assertFalse(self.is_free(share, 0.05))
        self.waiting.join(200)
        self.assertFalse(self.waiting.is_alive(), "it gets the one that was given back")

    def test_who_has_one_goes_on_with_that(self) -> None:
        share = self.share(2)
        with share.one():
            with share.one():
                pass
            self.assertFalse(self.is_free(share, 0.05), "it is given back by the first alone")
        self.waiting.join(200)
