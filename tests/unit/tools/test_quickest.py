# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from tools import quickest


class ChosenTest(unittest.TestCase):
    def test_what_adds_most_per_second(self) -> None:
        a, b, c = ("x", 0, 1), ("x", 0, 2), ("x", 1, 2)
        places = {
            "all": frozenset((a, b, c)),
            "cheap": frozenset((a, b)),
            "same": frozenset((a, b)),
            "known": frozenset((c,)),
        }
        seconds = {"all": 10.0, "cheap": 1.0, "same": 2.0, "known": 0.1}
        self.assertEqual([("cheap", 1.0, 2)], quickest.chosen(places, seconds, {c}, limit_s=100))
        self.assertEqual(
            [("known", 0.1, 1), ("cheap", 1.0, 2)],
            quickest.chosen(places, seconds, (), limit_s=100),
        )
        del seconds["cheap"], seconds["known"]
        self.assertEqual([("same", 2.0, 2)], quickest.chosen(places, seconds, (), limit_s=5))
