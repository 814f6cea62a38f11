# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import threading
import time
import unittest

from nova_gpu.cmd import verify, waiting
from nova_gpu.virt.verify.sources import Difference, Kind

SAFE = Difference(Kind.ALLOCATION_DIFFERS, "one", "one has 2 and 0 are counted", "repair it", True)
UNSAFE = Difference(Kind.FOREIGN_DOMAIN, "two", "two is nobody's", "virsh undefine")


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
        self.assertIn("agree", verify.text(verify.Verdict((), (), {})))
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

    def test_for_programs(self) -> None:
        verdict = verify.Verdict((SAFE, UNSAFE), ("libvirt: away",), {SAFE: None})
        plain = json.loads(json.dumps(verify.as_plain(verdict)))
        self.assertEqual(["libvirt: away"], plain["not_compared"])
        self.assertEqual([True, False], [each["repaired"] for each in plain["differences"]])
        self.assertEqual("foreign-domain", plain["differences"][1]["kind"])


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
        self.assertEqual(5, verify_soon(ask))


def verify_soon(ask: object) -> object:
    """A machine with other things to do may take longer than a tenth of a second for anything."""
    for _ in range(100):
        try:
            return ask(lambda: 5)  # type: ignore[operator]
        except TimeoutError:
            continue
    return None
