# SPDX-License-Identifier: Apache-2.0
"""All that is tested is in a tier, and each part of the long one has a row on its page."""

from __future__ import annotations

import shlex
import unittest

from tools import environments, long_record, suites, tiers

PARTS = (*tiers.RUN, *tiers.LONG)


class TiersTest(unittest.TestCase):
    def test_no_suite_is_in_neither(self) -> None:
        named = {word for part in PARTS for word in shlex.split(part.command)}
        self.assertIn("--short", shlex.split(tiers.RUN[0].command))
        for name, suite in suites.SUITES.items():
            in_tiers = name in named or (suite.short is not None and suite.long is None)
            self.assertNotEqual(in_tiers, bool(suite.on_request), name)
            self.assertNotEqual(suite.short is suite.long is None, not suite.on_request, name)

    def test_no_script_of_ci_and_no_release_is_in_neither(self) -> None:
        commands = [part.command for part in PARTS]
        scripts = {f".ci/{path.name}" for path in (environments.ROOT / ".ci").iterdir()}
        self.assertEqual(set(), scripts - {".ci/run", ".ci/long", *commands})
        for nova in {*environments.RELEASES} - {environments.NEWEST}:
            self.assertIn(f"tools/test --nova {nova} functional", commands)

    def test_the_page(self) -> None:
        text = long_record.PAGE.read_text()
        names = [part.name for part in tiers.LONG]
        self.assertEqual(names, [*long_record.read(text)])
        written = long_record.page(text, {"bars": ["abc", "today", "3"]}, names)
        self.assertEqual(["abc", "today", "3"], long_record.read(written)["bars"])
        self.assertEqual(long_record.NEVER, long_record.read(written)["vm"][0])
        self.assertEqual(written, long_record.page(written, long_record.read(written), names))
