# SPDX-License-Identifier: Apache-2.0
"""Hosts that are drained or reserved, in the scheduler's queries of a real Placement."""

from __future__ import annotations

import datetime
from typing import Any, ClassVar

import fixtures
from keystoneauth1 import exceptions as ks_exc
from nova.scheduler.client import report
from oslo_utils import timeutils

from nova_gpu_fleet.core import closed_hosts, names
from tests.fixtures.bases.request_filter import RequestFilterTestCase


class DrainedTest(RequestFilterTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.first = self.placement.add_host("host1")
        self.of_first = self.placement.add_group(self.first, 8)
        self.of_second = self.placement.add_group(self.placement.add_host("host2"), 8)
        self.vgpus = self.placement.add_vgpus(self.first, 4, "nvidia-35")

    def test_no_candidate_there_for_gpus_or_vgpus(self) -> None:
        self.placement.mark(self.first, names.DRAINED)
        spec = self.run_filter({"gpus": "= 2"})
        self.assertEqual({names.DRAINED}, spec.root_forbidden)
        self.assertEqual({self.of_second}, self.taken(spec))
        self.assertEqual({self.of_second}, self.taken(self.run_filter({"resources:PGPU": "2"})))
        self.assertIn(
            "Scheduling failed: 1 vGPU asked for is free only on hosts that are drained",
            self.refusal({"vgpus": "1"}),
        )
        self.assertEqual(2, len(self.candidates(self.run_filter({}))))

    def test_trait_that_somebody_deletes(self) -> None:
        self.run_filter({"gpus": "= 2"})
        gone = self.placement.api.delete("/traits/CUSTOM_GPU_DRAINED", version="1.36")
        self.assertEqual(204, gone.status)
        spec = self.run_filter({"gpus": "= 2"})
        self.assertEqual({self.of_first, self.of_second}, self.taken(spec))

    def test_is_put_to_placement_once(self) -> None:
        put: list[str] = []
        real = report.SchedulerReportClient.put

        def counting(this: report.SchedulerReportClient, url: str, *args: Any, **kw: Any) -> Any:
            put.append(url)
            return real(this, url, *args, **kw)

        self.useFixture(fixtures.MockPatchObject(report.SchedulerReportClient, "put", counting))
        for _ in range(3):
            self.run_filter({"gpus": "= 2"})
        self.assertEqual(["/traits/CUSTOM_GPU_DRAINED"], put)

    def test_where_placement_does_not_take_it(self) -> None:
        """Nobody knows then which hosts are drained."""

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise ks_exc.ConnectFailure

        self.useFixture(fixtures.MockPatchObject(report.SchedulerReportClient, "put", fail))
        self.assertIn("Placement does not say which GPUs", self.refusal({"gpus": "= 2"}))


class KeptTest(RequestFilterTestCase):
    """Hosts whose GPUs are for who is not preemptible"""

    SPOT: ClassVar = {"gpus": "= 2", "gpu:preemptible": "30m", "gpu:on_preempt": "delete"}

    def setUp(self) -> None:
        super().setUp()
        self.first = self.placement.add_host("host1")
        self.of_first = self.placement.add_group(self.first, 8)
        self.until = timeutils.utcnow().replace(microsecond=0) + datetime.timedelta(minutes=10)
        self.placement.mark(self.first, closed_hosts.reserving(self.until))

    def test_until_the_time_is_over(self) -> None:
        """Whoever set the trait, and is gone"""
        timeutils.set_time_override(self.until)
        self.addCleanup(timeutils.clear_time_override)
        self.assertEqual({self.of_first}, self.taken(self.run_filter(self.SPOT)))
