# SPDX-License-Identifier: Apache-2.0
"""Which modules of a board an instance has; tests/functional/test_fabric.py asks a real Nova."""

from __future__ import annotations

import dataclasses
import threading
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_lib import exceptions

from osc_gpu import servers
from osc_gpu_fleet import instances
from tests.unit.osc_fleet import fleets


class ModulesTest(unittest.TestCase):
    def test_a_host_that_hangs_is_asked_once(self) -> None:
        """And the hosts together, as a minute for each of 1,000 would be a day."""
        all_ask = threading.Barrier(8, timeout=60)
        ids: list[str] = []

        def hang(connection: Any, server: Any) -> Any:
            ids.append(server.id)
            all_ask.wait()
            raise exceptions.CommandError("no answer within 60 s")

        board = fleets.BOARD.with_taken({1, 2, 3, 4})
        group = dataclasses.replace(fleets.host("host", (4, 0)).groups[0], board=board)
        names, one = [f"host{number}" for number in range(8)], fleets.need(1)
        members = {
            name: ([fleets.instance(f"{name} {n}", name, one) for n in range(4)], [group])
            for name in names
        }
        known = {
            instance.uuid: SimpleNamespace(id=instance.uuid, status="ACTIVE")
            for there, _ in members.values()
            for instance in there
        }
        with mock.patch.object(servers, "cards", hang):
            self.assertEqual({}, instances._modules(None, members, known, names))
            self.assertEqual(8, len(ids))
            fixed = {
                name: ([dataclasses.replace(instance, is_fixed=True) for instance in there], groups)
                for name, (there, groups) in members.items()
            }
            self.assertEqual({}, instances._modules(None, fixed, known, names))
        self.assertEqual(8, len(ids), "for boards that no instance may leave")
