# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import threading
import time
import unittest

from nova_gpu.cmd import verify, waiting
from nova_gpu.virt.verify.sources import Conflict, Difference

SAFE = Difference(
    Conflict.ALLOCATION_DIFFERS, "one", "one has 2 and 0 are counted", "repair it", True
)
UNSAFE = Difference(Conflict.FOREIGN_DOMAIN, "two", "two is nobody's", "virsh undefine")


class VerdictTest(unittest.TestCase):
    def test_status(self) -> None:
        for verdict, status in (
            (verify.Verdict((), (), {}), 0),
            (verify.Verdict((SAFE, UNSAFE), (), {}), 1),
            (verify.Verdict((SAFE,), (), {SAFE: None}), 0),
            (verify.Verdict((SAFE, UNSAFE), (), {SAFE: None}), 1),
            (verify.Verdict((SAFE,), (), {SAFE: "Placement is away"}), 1),
            (verify.Verdict((), ("libvirt: away",), {}), 3),
            (verify.Verdict((SAFE,), ("libvirt: away",), {}), 3),
        ):
            with self.subTest(verdict):
                self.assertEqual(status, verdict.status)

    def test_for_people(self) -> None:
        verdict = verify.Verdict((SAFE, UNSAFE), ("libvirt: away",), {SAFE: None})
        self.assertEqual(
            [
                "Not compared: libvirt: away",
                "allocation-differs: one has 2 and 0 are counted",
                "    repaired",
                "foreign-domain: two is nobody's",
                "  - virsh undefine",
            ],
            verify.text(verdict).splitlines(),
        )
        failed = verify.Verdict((SAFE,), (), {SAFE: "one is as it was"})
        self.assertIn("  - one is as it was", verify.text(failed))


class WithinTest(unittest.TestCase):
    def test_an_answer_and_an_error(self) -> None:
        ask = waiting.within(200)
        self.assertEqual(5, ask(lambda: 5))
        self.assertRaises(ZeroDivisionError, ask, lambda: 1 // 0)
        self.assertEqual(ask(threading.get_ident), ask(threading.get_ident))

    def test_what_does_not_answer_is_given_up_and_the_next_is_asked(self) -> None:
        ask, goes_on = waiting.within(0.1), threading.Event()
        self.addCleanup(goes_on.set)
        started = time.monotonic()
        self.assertRaises(TimeoutError, ask, goes_on.wait)
        self.assertLess(time.monotonic() - started, 200)
        for _ in range(100):  # A busy machine may take longer than that for anything.
            with contextlib.suppress(TimeoutError):
                self.assertEqual(5, ask(lambda: 5))
                return
        self.fail("it is not asked")
