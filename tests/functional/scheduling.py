# SPDX-License-Identifier: Apache-2.0
"""The cloud with the weigher of GPUs."""

from __future__ import annotations

from nova.conf.scheduler import filter_scheduler_opts

from nova_gpu.conf import CONF
from tests.functional import base


class SchedulingTestBase(base.GPUServersTestBase):
    def _setup_scheduler_service(self) -> object:
        classes = [
            *CONF.filter_scheduler.weight_classes,
            "nova_gpu.scheduler.weights.GPUWeigher",
        ]
        self.flags(weight_classes=classes, group="filter_scheduler")
        # Nova's tests go without its weigher of failed builds.
        CONF.clear_override("build_failure_weight_multiplier", group="filter_scheduler")
        service = super()._setup_scheduler_service()
        # All of Nova's filters and weighers are at their defaults, with ours added.
        changed = {
            option.name
            for option in filter_scheduler_opts
            if CONF.filter_scheduler[option.dest] != option.default
        }
        self.assertEqual({"available_filters", "enabled_filters", "weight_classes"}, changed)
        return service

    def hosts_of(self, count: int, flavor: str) -> list[str]:
        """Where so many instances come up, one after another, each seen by a period"""
        hosts = []
        for _ in range(count):
            hosts.append(self.host_of(self.boot(flavor)))
            self.period(hosts[-1])
        return hosts
