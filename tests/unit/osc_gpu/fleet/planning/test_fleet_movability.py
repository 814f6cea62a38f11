# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor.parsers import Consent
from osc_gpu.fleet.planning import fleet
from osc_gpu.fleet.planning.fleet import Way


class WayTest(unittest.TestCase):
    def way(
        self, status: str, said: Consent, *, live: bool = False, keeps_disk: bool = True
    ) -> Way | None:
        found, why = fleet.permitted_way(status, said, live=live, keeps_disk=keeps_disk)
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
