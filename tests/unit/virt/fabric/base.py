# SPDX-License-Identifier: Apache-2.0
"""A host with a board, in memory and by the real binding"""

from __future__ import annotations

import json

import fixtures
from nova import objects
from oslotest import base

from nova_gpu.core.scheduling import stats
from tests.fixtures import hosts, nvfm
from tests.fixtures.compute import Compute
from tests.fixtures.partitions import H100, MODULES, build


class FabricTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.manager = self.useFixture(nvfm.FabricManager(H100))
        self.at_hand = self.useFixture(nvfm.AtHand())
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        build(host, driver="vfio-pci")
        self.prepare(host)
        self.compute = self.useFixture(Compute(host))
        kept = host.root / "state" / "gpu-modules.json"
        kept.write_text(json.dumps({"modules": MODULES}))
        self.compute.restart()
        self.provider = self.compute.provider("2330")

    def prepare(self, host: hosts.Host) -> None:
        """What it has beside the board"""

    def claim(self, count: int) -> objects.Instance:
        """An instance with what Nova's tracker draws from the pool"""
        resources = self.compute.tree.data(self.provider).resources["PGPU"]
        assigned = {r for each in self.compute.instances.values() for r in each.resources}
        free = resources - assigned
        drawn = [free.pop() for _ in range(count)]
        had = [(self.provider, each.identifier) for each in drawn]
        return self.compute.instance({"gpus": str(count)}, *had)

    def boot(self, count: int) -> objects.Instance:
        instance = self.claim(count)
        self.compute.spawn(instance)
        return instance

    def free(self) -> dict[int, int]:
        told = stats.loads(self.compute.gpus.stats() or "")
        sets = next((each for each in told.free_partitions or () if each), ())
        return {size: count for size, count in sets}
