# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from unittest import mock

from nova import test
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from nova_gpu.core import exception
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import GroupStats
from nova_gpu.core.topology import topology
from nova_gpu.scheduler import host_reports


def host_state(
    name: str, total: int = 8, free: tuple[topology.Cells, ...] | None = None
) -> host_manager.HostState:
    group = GroupStats("10de:1091", "fermi", "lxc", total)
    state = host_manager.HostState(name, name, None)
    state.uuid = uuidutils.generate_uuid()
    state.hypervisor_type = "LXC"
    state.stats = {"nova_gpu": stats.dumps(stats.Report(stats.HostStats("LXC", (group,)), free))}
    return state


class ReportedTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        host_reports.forget()

    def test_a_string_is_parsed_once_until_it_changes(self) -> None:
        state = host_state("host1")
        with mock.patch.object(stats, "loads", wraps=stats.loads) as loads:
            for _ in range(3):
                state.stats = {"nova_gpu": str(bytes(state.stats["nova_gpu"], "ascii"), "ascii")}
                self.assertEqual(8, host_reports.host_stats(state).groups[0].total)
            self.assertEqual(1, loads.call_count)
            state.stats = host_state("host1", 7).stats
            self.assertEqual(7, host_reports.host_stats(state).groups[0].total)
            self.assertEqual(2, loads.call_count)

    def test_nothing_and_what_cannot_be_read(self) -> None:
        state = host_state("host1")
        host_reports.host_stats(state)
        state.stats = {}
        self.assertIsNone(host_reports.host_stats(state))
        state.stats = {"nova_gpu": "{"}
        for _ in range(2):
            self.assertRaises(exception.InvalidStats, host_reports.host_stats, state)

    def test_what_nobody_reports_any_more_does_not_stay_for_ever(self) -> None:
        for total in range(3):
            host_reports.host_stats(host_state("host1", total))
        held = host_reports._read.cache_info()
        self.assertEqual(3, held.currsize)
        self.assertLess(held.maxsize or 10**9, 10**5)
