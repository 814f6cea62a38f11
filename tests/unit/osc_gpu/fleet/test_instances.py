# SPDX-License-Identifier: Apache-2.0
"""Which modules of a board an instance has; tests/functional/test_fabric.py asks a real Nova."""

from __future__ import annotations

import collections
import dataclasses
import threading
import unittest
from collections.abc import Mapping
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


class ModulesTest(unittest.TestCase):
    """Of one host, or of several that are alike"""

    def modules(
        self,
        held: dict[str, dict[int, int]],
        cards: Any,
        hosts: int = 1,
        status: str = "ACTIVE",
        taken: int = 4,
    ) -> Mapping[str, Sets]:
        names = [f"host{number}" for number in range(hosts)]
        board = dataclasses.replace(fleets.BOARD, taken=frozenset(range(1, taken + 1)))
        groups = [
            SimpleNamespace(group=dataclasses.replace(group, board=group.board and board))
            for group in GROUPS
        ]
        by_host: Any = {
            name: [
                (group, {f"{name} {who}": n for who, of in held.items() if (n := of.get(number))})
                for number, group in enumerate(groups)
            ]
            for name in names
        }
        known = {
            f"{name} {who}": SimpleNamespace(id=f"{name} {who}", status=status)
            for name in names
            for who in held
        }
        with mock.patch.object(servers, "cards", cards):
            return instances._modules(None, by_host, known, names)

    def said(self, *modules: int) -> Any:
        cards = [{"address": "0000:3b:00.0"}, *({"module": each} for each in modules)]
        return lambda connection, server: (cards, "")

    def test_its_host_says(self) -> None:
        found = self.modules({"one": {0: 2, 1: 1}, "two": {0: 1}}, self.said(3, 1))
        self.assertEqual({"host0 one": ((0, (1, 3)),), "host0 two": ()}, found)

    def test_it_is_not_asked(self) -> None:
        """One that has all that is taken, or nothing on the board, or is stopped"""
        asked = mock.Mock(side_effect=AssertionError)
        self.assertEqual({}, self.modules({"one": {0: 2}, "two": {1: 2}}, asked, taken=2))
        found = self.modules({"one": {0: 2}, "two": {0: 2}}, asked, status="SHUTOFF")
        self.assertEqual({(): 2}, collections.Counter(found.values()))

    def test_a_host_that_hangs_is_asked_once(self) -> None:
        """And the hosts together, as a minute for each of 1,000 would be a day."""
        all_ask = threading.Barrier(8, timeout=60)

        def hang(connection: Any, server: Any) -> Any:
            asked.append(server.id)
            all_ask.wait()
            raise exceptions.CommandError("no answer within 60 s")

        asked: list[str] = []
        held = {str(number): {0: 1} for number in range(4)}
        self.assertEqual({}, self.modules(held, hang, hosts=8))
        self.assertEqual(8, len(asked))


if __name__ == "__main__":
    unittest.main()
