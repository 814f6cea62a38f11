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
        path = host.root / "state" / "gpu-modules.json"
        path.write_text(json.dumps({"modules": MODULES}))
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
        assigned = {r for instance in self.compute.instances.values() for r in instance.resources}
        free = resources - assigned
        drawn = [free.pop() for _ in range(count)]
        had = [(provider, resource.identifier) for resource in drawn]
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
        host_stats = stats.loads(self.compute.gpus.publication.stats() or "")
        sets = next((free_sets for free_sets in host_stats.free_partitions or () if free_sets), ())
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
        divided = stats.loads(self.compute.gpus.publication.stats() or "").divided
        sets = zip(divided.vgpus, divided.sets or ((),) * len(divided.vgpus), strict=True)
        of_whole = next(
            (free_sets for (type_id, *_), free_sets in sets if type_id == WHOLE_TYPE), ()
        )
        return {size: count for size, count in of_whole if count}


def modules(instance: objects.Instance) -> frozenset[int]:
    """Of the cards that an instance has, or functions of which it has"""
    return frozenset(MODULES[f"{resource.identifier[:10]}.0"] for resource in instance.resources)
