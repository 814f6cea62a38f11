# SPDX-License-Identifier: Apache-2.0
"""MIG instances, which containers get: from the provider tree to the guest and back."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

from nova_gpu.virt import counters, driver
from nova_gpu.virt.lifecycle import proofs
from tests.fixtures import cdi
from tests.functional import alone, cleaned, mig, verifying
from tests.functional.mig import FIRST, LARGE, SECOND, SMALL, WHOLE, nodes_of, slot

ONE, TWO = slot(FIRST, 9, 0, SMALL), slot(FIRST, 10, 0, SMALL)
BIG = slot(FIRST, 1, 0, LARGE)


class RoadTest(alone.Alone, verifying.Verifying, mig.MIGServersTestBase):
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
        found = counters.read(self.state())
        self.assertEqual((1, 3), (found.claims, found.vgpu_claims))
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


class DividedUncleanTest(mig.MIGServersTestBase):
    """A card with instances that were not clean is divided into others; one has the id of a clean
    former one."""

    def setUp(self) -> None:
        super().setUp()
        self.commands = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.period()
        self.boot(self.of_type(LARGE))
        small = [self.boot(self.of_type(SMALL)) for _ in range(6)]
        self.commands.stain(SECOND)
        for server in small:
            self._delete_server(server)
        self.period()
        self.divide(SECOND, [(1, 0, LARGE), (2, 0, LARGE)])

    def test_claimed_before_it_is_judged_and_started_after(self) -> None:
        """A spawn may take longer than a period: it fetches the image."""
        judge, spawn = proofs.Proofs.judge, driver.GPULibvirtDriver.spawn
        claimed, judged = threading.Event(), threading.Event()

        def judge_late(*args: Any) -> None:
            claimed.wait(60)
            judge(*args)
            judged.set()

        def spawn_late(*args: Any, **kwargs: Any) -> None:
            claimed.set()
            judged.wait(60)
            spawn(*args, **kwargs)

        with (
            mock.patch.object(proofs.Proofs, "judge", judge_late),
            mock.patch.object(driver.GPULibvirtDriver, "spawn", spawn_late),
        ):
            period = threading.Thread(target=self.period)
            period.start()
            self.boot_refused(self.of_type(LARGE))
            period.join(60)
        self.assertTrue(judged.is_set())
        self._expect_cleaning()

    def _expect_cleaning(self) -> None:
        """They are given when they are clean."""
        self.period()
        self.assertEqual((3, 2, 1), self.vgpus(LARGE))
        self.commands.wipe(SECOND)
        self.wait_for_vgpus(3, 0, 1, profile=LARGE)
        server = self.boot(self.of_type(LARGE))
        self.assertEqual(1, len(self.recorded(server)))


class LayoutTest(alone.Alone, verifying.Verifying, mig.MIGServersTestBase):
    """What an operator does to cards, and what NVML leaves unsaid"""

    def silence(self) -> None:
        self.was_told, self.told = self.told, {}

    def test_nvml_is_silent_from_the_start(self) -> None:
        """Neither whole nor in parts, and the guests that run go on."""
        server = self.boot(self.of_type(SMALL))
        self.silence()
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
        said = self.refused({"os-start": None}, server)
        self.assertIn("NVML does not report them", said[0])
        self.told = self.was_told
        self.period()
        self.period()
        self.assertEqual((6, 0, 1), self.vgpus())
        self._start_server(server)
        self.assertInstances(server, [ONE], nodes_of(0, 9))
        self.assertFound()


class FilesTest(alone.Alone, mig.MIGServersTestBase):
    HOSTS = ("host1",)

    def describe(self, *mounts: dict[str, str]) -> None:
        """The first small instance with *mounts*, the other one by its card alone"""
        host = self.hosts["host1"]
        document = cdi.nvidia(host.root / "driver", range(len(mig.CARDS)))
        edits = {"deviceNodes": [{"path": node} for node in nodes_of(0, 9)], "mounts": mounts}
        document["devices"].append({"name": "0:0", "containerEdits": edits})
        cdi.save(host.roots.cdi_spec_dirs[0] / "nvidia.yaml", document)

    def test_of_one_instance_that_are_gone(self) -> None:
        gone = str(self.hosts["host1"].root / "gone")
        self.describe({"hostPath": gone, "containerPath": "/usr/bin/gone"})
        self.period()
        self.assertEqual((6, 1, 0), self.vgpus())
        self.assertIn(f"names {gone}: No such file", self.log())
        self.assertInstances(self.boot(self.of_type(SMALL)), [TWO], nodes_of(0, 10))
        self.describe()
        self.period()
        self.assertEqual((6, 0, 1), self.vgpus())
        self.assertInstances(self.boot(self.of_type(SMALL)), [ONE], nodes_of(0, 9))
