# SPDX-License-Identifier: Apache-2.0
"""The faults of ``tests.faults`` fit the code and the tests as they are now."""

from __future__ import annotations

import unittest

from tests.faults import fault


class FaultsTest(unittest.TestCase):
    def test_each_fits_the_code_and_names_tests(self) -> None:
        faults = fault.load()
        self.assertEqual(len(faults), len({entry.name for entry in faults}))
        for entry in faults:
            with self.subTest(entry.name):
                entry.changed()
                entry.refuse_missing_tests()
