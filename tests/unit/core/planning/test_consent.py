# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.planning import consent
from nova_gpu.core.planning.consent import Consent
from nova_gpu.core.planning.fleet import Way


class ParseTest(unittest.TestCase):
    def test_words(self) -> None:
        self.assertIs(Consent.LIVE, consent.parse({}))
        for text, said in (
            ("live", Consent.LIVE),
            (" Cold ", Consent.COLD),
            ("none", Consent.NONE),
        ):
            with self.subTest(text=text):
                self.assertIs(said, consent.parse({"gpu:move": text}))

    def test_anything_else_is_refused(self) -> None:
        for text in ("", "yes", "live cold", "never"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                consent.parse({"gpu:move": text})
            self.assertIn(f"gpu:move={text!r}", str(caught.exception))
            self.assertIn("live or cold or none", str(caught.exception))


class WayTest(unittest.TestCase):
    def way(
        self, status: str, said: Consent, *, live: bool = False, keeps_disk: bool = True
    ) -> Way | None:
        found, why = consent.way(status, said, live=live, keeps_disk=keeps_disk)
        self.assertEqual(found is None, bool(why), "a reason, where it stays")
        return found

    def test_runs(self) -> None:
        for said, live, expected in (
            (Consent.LIVE, True, Way.LIVE),
            (Consent.LIVE, False, None),
            # It is not shut down where it need not be.
            (Consent.COLD, True, Way.LIVE),
            (Consent.COLD, False, Way.COLD),
            (Consent.NONE, True, None),
            (Consent.NONE, False, None),
        ):
            with self.subTest(said=said, live=live):
                self.assertIs(expected, self.way("ACTIVE", said, live=live))

    def test_stopped(self) -> None:
        for live in (True, False):
            self.assertIs(Way.STOPPED, self.way("SHUTOFF", Consent.LIVE, live=live))
            self.assertIs(Way.STOPPED, self.way("SHUTOFF", Consent.COLD, live=live))
            self.assertIsNone(self.way("SHUTOFF", Consent.NONE, live=live))

    def test_a_stopped_container_loses_its_disk(self) -> None:
        self.assertIsNone(self.way("SHUTOFF", Consent.LIVE, keeps_disk=False))
        self.assertIs(Way.STOPPED, self.way("SHUTOFF", Consent.COLD, keeps_disk=False))

    def test_any_other_state_stays(self) -> None:
        for status in ("VERIFY_RESIZE", "ERROR", "PAUSED", "SUSPENDED", "RESCUE", "BUILD", ""):
            with self.subTest(status=status):
                self.assertIsNone(self.way(status, Consent.COLD, live=True))
