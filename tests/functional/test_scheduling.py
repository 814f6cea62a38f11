# SPDX-License-Identifier: Apache-2.0
"""Which host instances come to, with the real scheduler, Placement and compute hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import fixtures

from nova_gpu.conf import CONF
from nova_gpu.core.scheduling import stats
from tests.functional import base


class SchedulingTestBase(base.GPUServersTestBase):
    def _setup_scheduler_service(self) -> object:
        classes = [
            *CONF.filter_scheduler.weight_classes,
            "nova_gpu.scheduler.weights.GPUWeigher",
        ]
        self.flags(weight_classes=classes, group="filter_scheduler")
        return super()._setup_scheduler_service()

    def hosts_of(self, count: int, flavor: str) -> list[str]:
        """Where so many instances come up, one after another, each seen by a period"""
        found = []
        for _ in range(count):
            found.append(self.host_of(self.boot(flavor)))
            self.period(found[-1])
        return found


class WeigherTest(SchedulingTestBase):
    def test_pack_spread_and_last(self) -> None:
        self.start_host("gpu1")
        self.start_host("gpu2")
        self.start_host("plain", machine="cpu-only")
        one = self.gpu_flavor(1)
        (first,) = self.hosts_of(1, one)
        (other,) = {"gpu1", "gpu2"} - {first}
        # Four are a whole socket on either, and the host that is in use already has one.
        self.assertEqual([first, first], self.hosts_of(2, one))
        self.assertEqual([first, other], self.hosts_of(2, self.gpu_flavor(4)))
        spread = self.flavor(**{"gpus": "1", "gpu:distribution": "spread"})
        # One of eight is left on the first, four on the other.
        self.assertEqual([other], self.hosts_of(1, spread))
        self.assertEqual(["plain"], self.hosts_of(1, self.flavor()))
        self.flags(cpu_only_instances="never", group="gpu")
        self.assertEqual(["plain"], self.hosts_of(1, self.flavor()))
        self.boot_refused(self.flavor(), host=first)
        self.flags(cpu_only_instances="last", group="gpu")
        server = self.boot(self.flavor(), host=first)
        self.assertEqual(first, self.host_of(server))


class StrandingTest(SchedulingTestBase):
    """A host whose eight free GPUs keep all but 3200 MiB of its memory."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("gpu")
        memory = self._get_provider_inventory(self.compute_rp_uuids["gpu"])["MEMORY_MB"]
        capacity = (memory["total"] - memory["reserved"]) * memory["allocation_ratio"]
        kept = int(capacity - 3200) // 8
        self.flags(reserved_memory_mib_per_free_gpu=kept, group="gpu")
        self.period("gpu")

    def large(self) -> str:
        size = {"memory_mb": 4096, "vcpu": 1, "disk": 1, "ephemeral": 0}
        return str(self._create_flavor(**size))

    def test_the_filter_refuses_what_would_strand_gpus(self) -> None:
        large = self.large()
        self.boot_refused(large)
        # The GPUs' own instances may have it, and what fits beside them comes up.
        self.boot(self.flavor())
        self.boot(self.gpu_flavor(8))
        self.period("gpu")
        self.assertEqual("gpu", self.host_of(self.boot(large)))

    def test_the_host_looks_once_more(self) -> None:
        server = self.boot(self.gpu_flavor(8))
        self.period("gpu")
        self._delete_server(server)
        # What the host reported is a period old: no GPU was free.
        fault = self.boot_refused(self.large())
        self.assertIn("Exceeded maximum number of retries", fault)
        self.start_host("plain", machine="cpu-only")
        self.assertEqual("plain", self.host_of(self.boot(self.large())))


class ReleasesTest(SchedulingTestBase):
    """Hosts and a scheduler of several releases of nova-gpu, as in a rolling upgrade"""

    def reports(self, host: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Let *host* report as another release: what this one reports, changed."""
        dumps = stats.dumps

        def changed(report: stats.Report) -> str:
            return json.dumps(change(json.loads(dumps(report))))

        with fixtures.MonkeyPatch("nova_gpu.core.scheduling.stats.dumps", changed):
            self.period(host)

    def test_hosts_of_other_releases(self) -> None:
        self.start_host("host1")
        two = self.gpu_flavor(2)
        for name, change in (
            # Without what a release adds, and with what the next one may.
            ("older", lambda now: {key: now[key] for key in ("v", "hypervisor", "groups")}),
            ("first", lambda now: now | {"v": 1, "groups": [_first(g) for g in now["groups"]]}),
            ("newer", lambda now: now | {"more": [], "groups": [_more(g) for g in now["groups"]]}),
        ):
            with self.subTest(name):
                self.reports("host1", change)
                self.assertEqual("host1", self.host_of(server := self.boot(two)))
                self._delete_server(server)
        # One that says the same in another way cannot be read, until the scheduler is upgraded.
        self.reports("host1", lambda now: now | {"v": stats.VERSION + 1})
        self.assertIn("No valid host", self.boot_refused(two))
        self.assertEqual("host1", self.host_of(self.boot(self.flavor())))
        self.period()
        self.assertEqual("host1", self.host_of(self.boot(two)))


def _first(group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in ("product", "architecture", "mode", "total")}


def _more(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "more": {"is": 1}, "islands": {**group["islands"], "pod": 8}}
