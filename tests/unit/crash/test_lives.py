# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import unittest

from tests.crash import lives, points


class LivesTest(unittest.TestCase):
    def _first(self, seed: int, number: int = 400) -> list[lives.Life]:
        return list(itertools.islice(lives.lives(seed), number))

    def test_every_named_point_once(self) -> None:
        every = {f"{each}: {point}" for each in points.FUNCTIONS for point in points.named(each)}
        found = [str(stage) for life in self._first(1) for stage in life if stage.point]
        named = [each for each in found if " step " not in each and " time " not in each]
        self.assertEqual(sorted(every), sorted(named))

    def test_one_seed_one_order(self) -> None:
        self.assertEqual(self._first(3), self._first(3))
        self.assertNotEqual(self._first(3), self._first(4))
