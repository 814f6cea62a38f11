# SPDX-License-Identifier: Apache-2.0
"""MIG instances, which containers get: from the provider tree to the guest and back."""

from __future__ import annotations

from nova_gpu.virt import counters
from tests.functional import mig, verifying
from tests.functional.mig import FIRST, LARGE, SECOND, SMALL, WHOLE, nodes_of, slot

ONE, TWO = slot(FIRST, 9, 0, SMALL), slot(FIRST, 10, 0, SMALL)
BIG = slot(FIRST, 1, 0, LARGE)


class RoadTest(verifying.Verifying, mig.MIGServersTestBase):
    def test_there_and_back(self) -> None:
        self.assertEqual((6, 0, 0), self.vgpus())
        self.assertEqual((2, 0, 0), self.vgpus(LARGE))
        self.assertInventory(total=6)
        one, two = (self.boot(self.of_type(SMALL)) for _ in range(2))
        self.assertInstances(one, [ONE], nodes_of(0, 9))
        self.assertInstances(two, [TWO], nodes_of(0, 10))
        big = self.boot(self.of_type(LARGE))
        self.assertInstances(big, [BIG], nodes_of(0, 1))
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [WHOLE])
        self.assertEqual((6, 0, 2), self.vgpus())
        counts = counters.read(self.state())
        self.assertEqual((1, 3), (counts.claims, counts.vgpu_claims))
        self.assertFound()
        self._delete_server(one)
        self.assertInstances(self.boot(self.of_type(SMALL)), [ONE], nodes_of(0, 9))
        self.assertFound()
        self.assertNotIn("ERROR [nova_gpu", self.log())

    def test_several_and_whole_ones_beside_them(self) -> None:
        server = self.boot(self.flavor(vgpus="= 4", vgpu_type=SMALL, gpus="= 1"))
        slots = [slot(FIRST, gi, 0, SMALL) for gi in (9, 10, 11)] + [slot(SECOND, 9, 0, SMALL)]
        nodes = [*nodes_of(0, 9), *nodes_of(0, 10), *nodes_of(0, 11), *nodes_of(1, 9)]
        self.assertEqual(sorted([WHOLE, *slots]), self.recorded(server))
        self.assertEqual(sorted({*nodes, "/dev/nvidia2"}), self.given(server))
        self.assertFound()

    def test_nvml_is_silent_from_the_start(self) -> None:
        """Neither whole nor in parts, and the guests that run go on."""
        server = self.boot(self.of_type(SMALL))
        before, self.layouts = self.layouts, {}
        self.restart_host("host1")
        self.period()
        self.assertIn(
            f"GPU {FIRST} (H200 SXM 141GB) is not offered: the driver has MIG instances of it, but",
            self.log(),
        )
        self.assertInventory(total=6)
        self.assertEqual((1, 0, 1), self.vgpus())
        self.boot_refused(self.of_type(SMALL))
        self._stop_server(server)
        messages = self.refused({"os-start": None}, server)
        self.assertIn("NVML does not report them", messages[0])
        self.layouts = before
        self.period()
        self.period()
        self.assertEqual((6, 0, 1), self.vgpus())
        self._start_server(server)
        self.assertInstances(server, [ONE], nodes_of(0, 9))
        self.assertFound()
