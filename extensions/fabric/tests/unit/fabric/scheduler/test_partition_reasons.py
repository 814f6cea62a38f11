# SPDX-License-Identifier: Apache-2.0
"""What is free by hosts' reports is compared with a real Placement."""

from __future__ import annotations

from collections.abc import Collection
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import test
from nova.scheduler import host_manager
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import exception, names
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import GroupStats
from nova_gpu.core.topology.topology import Cells
from nova_gpu.scheduler import placement
from nova_gpu.scheduler.filters import GPUFilter
from nova_gpu_fabric.core.set_traits import PartitionSets
from tests.fixtures.cloud_gpus import PlacementWithGPUs, request_spec
from tests.fixtures.partitions import H100

ALL = PartitionSets(H100, frozenset())
HOPPER = GroupStats("10de:2330", "hopper", "pci", 8, partitions=(1, 2, 4, 8))
PLAIN = GroupStats("10de:1091", "fermi", "pci", 8)
SIX = (((-1, 0, -1, -1, 3), (-1, 1, -1, -1, 3)),)
THREE = (((-1, 0, -1, -1, 1), (-1, 1, -1, -1, 2)),)
# A card of each half is somebody's
APART = (((1, 6), (2, 2)),)


class PartitionsTest(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.placement = self.useFixture(PlacementWithGPUs())

    def board(
        self,
        name: str = "host1",
        used: int = 2,
        free_partitions: tuple[tuple[tuple[int, int], ...], ...] | None = APART,
        group: GroupStats = HOPPER,
        cells: tuple[Cells, ...] = SIX,
        free: Collection[int] | None = None,
    ) -> host_manager.HostState:
        """A host with six GPUs free

        :param cells: what was free at its last period
        :param free: the modules that are free by its traits
        """
        state = host_manager.HostState(name, name, uuids.cell)
        state.uuid = self.placement.add_host(name)
        product_id = group.product.rpartition(":")[2]
        self.placement.add_group(
            *(state.uuid, 8, group.architecture),
            hypervisor="QEMU",
            product_id=product_id,
            used=used,
            sets=() if free is None else ALL.with_taken(ALL.free.difference(free)).traits(),
        )
        state.allocation_candidates = [{"allocations": {"": {"resources": {"PGPU": 8}}}}]
        state.hypervisor_type = "QEMU"
        host = stats.HostStats("QEMU", (group,))
        report = stats.Report(host, cells, free_partitions=free_partitions)
        state.stats = {names.STATS: stats.dumps(report)}
        return state

    def passing(self, *hosts: host_manager.HostState, gpus: int = 4, instances: int = 1) -> int:
        spec = request_spec({"gpus": str(gpus)})
        spec.num_instances = instances
        return len(list(GPUFilter().filter_all(hosts, spec)))

    def refused(self, *hosts: host_manager.HostState) -> str:
        return str(self.assertRaises(nova_exception.NoValidHost, self.passing, *hosts))

    def logged(self, *hosts: host_manager.HostState) -> str:
        """What operators read, with the numbers"""
        self.refused(*hosts)
        return str(self.log.output.splitlines()[-1])

    def test_enough_are_free_and_no_set(self) -> None:
        message = self.refused(self.board())
        self.assertIn("4 GPUs asked for, no free partition of 4 in any host", message)
        self.assertNotIn("6 of 8", message)
        self.assertIn("4 GPUs asked for, 6 of 8 free, no free partition of 4", self.log.output)
        self.refused(self.board("host2"), self.board("host3"))
        self.assertIn("12 of 16 free", self.log.output)

    def test_another_host_has_one(self) -> None:
        other = self.board("host2", free_partitions=(((1, 6), (2, 3), (4, 1)),))
        self.assertEqual(2, self.passing(self.board(), other))
        self.assertEqual(2, self.passing(self.board("host3"), self.board("host4", group=PLAIN)))

    def test_more_is_free_than_the_report_says(self) -> None:
        """Somebody has given a card back since."""
        self.assertEqual(1, self.passing(self.board(used=1)))
        self.assertIn("5 of 8 free, no free", self.logged(self.board("host2", used=3)))

    def test_what_has_become_free_is_no_set(self) -> None:
        """Their traits are newer than their reports."""
        for free in (None, (1, 2, 3, 4, 5, 6), (1, 2, 3, 5, 6)):
            with self.subTest(free=free):
                self.assertEqual(1, self.passing(self.board(f"of {free}", cells=THREE, free=free)))
        late = self.board("apart", cells=THREE, free=(1, 2, 3, 5, 6, 7))
        self.assertIn("6 of 8 free, no free partition of 4", self.logged(late))

    def test_what_was_free_is_taken(self) -> None:
        had = (((1, 6), (4, 1)),)
        gone = self.board("gone", free_partitions=had, free=(1, 2, 3, 5, 6, 7))
        self.assertIn("6 of 8 free, no free partition of 4", self.logged(gone))
        there = self.board("there", free_partitions=had, free=(1, 2, 3, 4, 6, 7))
        self.assertEqual(2, self.passing(gone, there))
        others = [self.board(f"host{n}", free_partitions=had, free=()) for n in range(4)]
        self.assertEqual(4, self.passing(*others))

    def test_several_at_once_are_left_to_the_claims(self) -> None:
        self.assertEqual(1, self.passing(self.board(), instances=2))

    def test_many_hosts_are_left_to_the_claims(self) -> None:
        hosts = [self.board(f"host{number}") for number in range(11)]
        self.assertEqual(11, self.passing(*hosts))

    def test_placement_does_not_answer(self) -> None:
        failed = exception.PlacementFailed("/resource_providers", "503")
        with mock.patch.object(placement, "providers", side_effect=failed):
            self.assertEqual(1, self.passing(self.board()))
