# SPDX-License-Identifier: Apache-2.0
"""Fabric Manager over what real ones told (tests/recorded)."""

from __future__ import annotations

from nova_gpu.core.sets.partitions import Partition
from nova_gpu.fabric.host import fabric_probe
from nova_gpu.fabric.host.fabric_manager import FabricManager
from tests.fixtures import nvfm, partitions
from tests.fixtures.bases.recorded import RecordedTestCase


class TestPartitions(RecordedTestCase):
    def test_by_the_library(self) -> None:
        """The pretended board is a real one, and so many NVLinks has each of its partitions."""
        self.useFixture(nvfm.AtHand())
        for record in self.each("partitions"):
            told = [(number, frozenset(modules)) for number, _, modules in record["partitions"]]
            self.useFixture(nvfm.FabricManager(Partition(*each) for each in told))
            read = FabricManager("127.0.0.1:6666", 60.0).read().partitions
            self.assertEqual(partitions.H100, read)
            self.assertEqual(partitions.MODULES, record.get("modules", partitions.MODULES))
            answer = fabric_probe.probe("127.0.0.1:6666", "1000", "partitions")
            for each, (_, links, _) in zip(answer["partitions"], record["partitions"], strict=True):
                if links is not None:
                    self.assertEqual(links, sum(gpu["links"] for gpu in each["gpus"]))
