# SPDX-License-Identifier: Apache-2.0
"""How many modules a guest's start passes: whoever follows it opens each of them.

Each limit is what a start passed when it was written. Who needs a module more raises it, with the
reason in the commit; who needs one less lowers it.
"""

from __future__ import annotations

import contextlib
import pathlib
import sys
import types
from collections.abc import Iterator

import fixtures

import nova_gpu
from nova_gpu.core.guest import devices
from nova_gpu.virt.usage import records
from tests.fixtures import dividing_kernel, hosts, nodes, vgpu
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.compute import Compute

_PACKAGE = f"{pathlib.Path(nova_gpu.__file__).parent}/"
BLUEPRINT = {"gpus": "= 1", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}
CARD = "0000:3b:00.0"


@contextlib.contextmanager
def passed() -> Iterator[set[str]]:
    """The modules of nova_gpu in which this thread calls a function"""
    found: set[str] = set()

    def note(frame: types.FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_PACKAGE):
            found.add(name.removeprefix(_PACKAGE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


class ModulesTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.FakeLogger())

    def assertPasses(self, most: int, compute: Compute, had: tuple[str, str], **specs: str) -> None:
        """The second start, as the first one imports some modules"""
        for _ in range(2):
            instance = compute.instance(specs, had)
            with passed() as found:
                compute.spawn(instance)
            self.assertEqual(1, len(devices.of_metadata(instance.system_metadata)))
            compute.delete(instance)
        self.assertIn("virt/lifecycle/starts.py", found)
        self.assertLessEqual(len(found), most, "\n".join(sorted(found)))

    def test_card_of_a_container(self) -> None:
        host = hosts.build("fermi-8", self.root / "fermi-8", nodes.Nodes.FILES)
        compute = self.useFixture(Compute(host, "lxc"))
        had = compute.provider("1091"), "0000:04:00.0"
        self.assertPasses(45, compute, had, **BLUEPRINT)

    def test_card_by_passthrough(self) -> None:
        self.host.add_gpu(CARD, "10de", "2335", driver="vfio-pci", numa_node=0)
        compute = self.useFixture(Compute(self.host))
        self.assertPasses(52, compute, (compute.provider("2335"), CARD), gpus="1")

    def test_readings_of_the_flavor(self) -> None:
        """One before the guest's configuration is written, and one then: Nova's code is between."""
        self.host.add_gpu(CARD, "10de", "2335", driver="vfio-pci", numa_node=0)
        compute = self.useFixture(Compute(self.host))
        instance = compute.instance({"gpus": "1"}, (compute.provider("2335"), CARD))
        read = self.useFixture(
            fixtures.MockPatchObject(records, "request_of", wraps=records.request_of)
        ).mock
        compute.spawn(instance)
        self.assertEqual(2, read.call_count)

    def test_mediated_device(self) -> None:
        vgpu.add_p4(self.host, CARD)
        self.useFixture(dividing_kernel.DividingKernel(self.host))
        compute = self.useFixture(Compute(self.host))
        had = compute.provider("1bb3", "nvidia-63"), f"{CARD}/nvidia-63/0"
        self.assertPasses(61, compute, had, vgpus="1")
