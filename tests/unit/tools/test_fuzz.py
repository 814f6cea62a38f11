# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from tests.unit.fuzz import base
from tools import fuzz


class FuzzTest(unittest.TestCase):
    def test_every_property_is_run(self) -> None:
        loader = unittest.TestLoader()
        folders = {str(path.parent) for path in fuzz.files()}
        self.assertIn(str(fuzz.TESTS / "fuzz"), folders)
        found = set()
        waiting = [loader.discover(folder, top_level_dir=str(fuzz.ROOT)) for folder in folders]
        while waiting:
            for each in waiting.pop():
                if isinstance(each, unittest.TestSuite):
                    waiting.append(each)
                elif isinstance(each, base.FuzzTestCase):
                    found.add(each.id())
        self.assertEqual([], loader.errors)
        self.assertEqual(found, set(fuzz._properties()))
