# SPDX-License-Identifier: Apache-2.0
"""Which modules of a board an instance has; tests/functional/test_fabric.py asks a real Nova."""

from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_lib import exceptions

from osc_gpu import servers
from osc_gpu.fleet import instances
from osc_gpu.fleet.planning.fleet import Sets
from tests.unit.osc_gpu.fleet import fleets

_HOST = fleets.host("host1", (4, 0), (2, 0))
GROUPS = fleets.with_board(_HOST).groups


class SetsTest(unittest.TestCase):
    def sets(self, held: dict[int, int], cards: Any, status: str = "ACTIVE") -> Sets:
        server = SimpleNamespace(id="one", status=status)
        with mock.patch.object(servers, "cards", cards):
            return instances._sets(None, server, held, GROUPS)

    def said(self, *modules: int) -> Any:
        cards = [{"address": "0000:3b:00.0"}, *({"module": each} for each in modules)]
        return lambda connection, server: (cards, "")

    def test_its_host_says(self) -> None:
        self.assertEqual(((0, (1, 3)),), self.sets({0: 2, 1: 1}, self.said(3, 1)))

    def test_nobody_says_all(self) -> None:
        self.assertEqual((), self.sets({0: 2}, self.said(3)))
        self.assertEqual((), self.sets({0: 2}, mock.Mock(side_effect=exceptions.CommandError)))

    def test_it_is_not_asked(self) -> None:
        asked = mock.Mock(side_effect=AssertionError)
        self.assertEqual((), self.sets({1: 2}, asked))
        self.assertEqual((), self.sets({0: 2}, asked, "SHUTOFF"))


if __name__ == "__main__":
    unittest.main()
