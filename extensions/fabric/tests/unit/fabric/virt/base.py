# SPDX-License-Identifier: Apache-2.0
"""A host with a board, in memory and by the real binding"""

from __future__ import annotations

import json

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.core.scheduling import stats
from nova_gpu.virt.lifecycle.start import Kind
from tests.fixtures import hosts, nvfm, profiling_kernel, vgpu
from tests.fixtures.compute import Compute
from tests.fixtures.partitions import H100, MODULES, build

WHOLE_TYPE, HALF_TYPE = "nvidia-1396", "nvidia-1395"


class FabricTestCase(base.BaseTestCase):
    MODE = 1

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.manager = self.useFixture(nvfm.FabricManager(H100, mode=self.MODE, modules=MODULES))
        self.at_hand = self.useFixture(nvfm.AtHand())
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        self.build(host)
        self.prepare(host)
        self.compute = self.useFixture(Compute(host))
        kept = host.root / "state" / "gpu-modules.json"
        kept.write_text(json.dumps({"modules": MODULES}))
        self.compute.restart()
        self.provider = self.find_provider()

    def build(self, host: hosts.Host) -> None:
        build(host, driver="vfio-pci")

    def prepare(self, host: hosts.Host) -> None:
        """What it has beside the board"""

    def find_provider(self) -> str:
        return self.compute.provider("2330")

    def claim(self, count: int) -> objects.Instance:
        """An instance with what Nova's tracker draws from the pool"""
        return self._claim("PGPU", {"gpus": str(count)}, self.provider, count)

    def _claim(
        self, resource_class: str, specs: dict[str, str], provider: str, count: int
    ) -> objects.Instance:
        resources = self.compute.tree.data(provider).resources[resource_class]
        assigned = {r for each in self.compute.instances.values() for r in each.resources}
        free = resources - assigned
        drawn = [free.pop() for _ in range(count)]
        had = [(provider, each.identifier) for each in drawn]
        return self.compute.instance(specs, *had)

    def boot(self, count: int) -> objects.Instance:
        instance = self.claim(count)
        self.compute.spawn(instance)
        return instance

    def refused(self, instance: objects.Instance, kind: Kind = Kind.MOVE) -> str:
        """Why its guest does not start"""
        raised = self.assertRaises(
            nova_exception.ComputeResourcesUnavailable, *(self.compute.spawn, instance, kind)
        )
        return str(raised)

    def free(self) -> dict[int, int]:
        told = stats.loads(self.compute.gpus.publication.stats() or "")
        sets = next((each for each in told.free_partitions or () if each), ())
        return {size: count for size, count in sets}


class VGPUs:
    """Put before a test of whole cards, has it give vGPUs that are all of a card each. The cards
    have two functions each."""

    MODE = 2

    def build(self, host: hosts.Host) -> None:
        build(host, functions=2, driver="nvidia")
        self.kernel = self.useFixture(  # type: ignore[attr-defined]
            profiling_kernel.ProfilingKernel(host, vgpu.H100)
        )

    def find_provider(self: FabricTestCase, vgpu_type: str = WHOLE_TYPE) -> str:
        return self.compute.provider("2330", vgpu_type)

    def claim(self: FabricTestCase, count: int) -> objects.Instance:
        return self._claim("VGPU", {"vgpus": str(count)}, self.provider, count)

    def claim_half(self: FabricTestCase) -> objects.Instance:
        """A vGPU that is half of a card"""
        half = self.compute.provider("2330", HALF_TYPE)
        return self._claim("VGPU", {"vgpus": "1"}, half, 1)

    def free(self: FabricTestCase) -> dict[int, int]:
        told = stats.loads(self.compute.gpus.publication.stats() or "").divided
        sets = zip(told.vgpus, told.sets or ((),) * len(told.vgpus), strict=True)
        of_whole = next((each for (type_id, *_), each in sets if type_id == WHOLE_TYPE), ())
        return {size: count for size, count in of_whole if count}


def modules(instance: objects.Instance) -> frozenset[int]:
    """Of the cards that an instance has, or functions of which it has"""
    return frozenset(MODULES[f"{each.identifier[:10]}.0"] for each in instance.resources)
