# SPDX-License-Identifier: Apache-2.0
"""Each error that a user or an operator can meet has its entry in the documentation."""

from __future__ import annotations

import unittest

from tests.fixtures import reasons

PAGE = reasons.PACKAGE.parent / "doc/source/admin/troubleshooting.rst"


def page() -> str:
    return " ".join(PAGE.read_text().replace("``", " ").split())


class TroubleshootingTest(unittest.TestCase):
    def test_each_error_has_its_entry(self) -> None:
        described = page()
        lacking = {}
        found = 0
        for module in sorted(reasons.PACKAGE.rglob("*.py")):
            if module.relative_to(reasons.PACKAGE).parts[0] == "cmd":
                continue
            for text in reasons.errors(module):
                if looked_for := reasons.told(text):
                    found += 1
                    if looked_for not in described:
                        lacking[looked_for] = module.name
        self.assertGreater(found, 100)
        self.assertEqual({}, lacking, f"{PAGE.name} has no entry for these")

    def test_each_kind_of_error_has_its_entry(self) -> None:
        described = page()
        for name, error in reasons.ERRORS.items():
            if not (parameters := reasons.parameters(error)):
                continue  # a kind of kinds
            text = reasons.told(str(error(*(reasons.ANY for _ in parameters))))
            with self.subTest(name):
                self.assertEqual(text, text if text in described else "no entry for it")
