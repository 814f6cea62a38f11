# SPDX-License-Identifier: Apache-2.0
"""Each difference made for real, named by ``nova-gpu verify``, and repaired or refused."""

from __future__ import annotations

import io

import fixtures
from nova.cmd import manage

from nova_gpu.virt.verify.sources import Kind
from tests.functional import alone, verifying


class AllocationsTest(alone.Alone, verifying.Verifying):
    def test_allocations_that_are_gone(self) -> None:
        for flavor in (self.gpu_flavor(2), self.flavor(**{"resources:PGPU": "2"})):
            server = self.boot(flavor)
            before = self.allocations(server)
            self.placement.delete(f"/allocations/{server['id']}")
            self.assertFound((Kind.ALLOCATION_DIFFERS, server["id"]))
            self.assertRepaired()
            self.assertEqual(before, self.allocations(server))
            self.assertGPUs(server, self.recorded(server))


class HealedTest(verifying.Verifying):
    def test_allocations_that_were_healed_without_gpus(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        before = self.allocations(server)
        self.placement.delete(f"/allocations/{server['id']}")
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", io.StringIO()))
        healed = manage.PlacementCommands().heal_allocations(
            instance_uuid=server["id"], skip_port_allocations=True
        )
        self.assertEqual(0, healed)
        self.assertEqual({}, self.allocated(server))
        self.assertNotEqual({}, self.allocations(server))
        self.assertFound((Kind.ALLOCATION_DIFFERS, server["id"]))
        self.assertRepaired()
        self.assertEqual(before, self.allocations(server))


class AtStartTest(alone.Alone, verifying.Verifying):
    def test_it_is_said_once_and_the_service_runs(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        url = f"/allocations/{server['id']}"
        allocation = self.placement.get(url, version="1.28").body
        (group,) = self.groups().values()
        self.leaves = dict.fromkeys(("allocation", "hold"), "its operator has to look at it")
        # One too many, of which no period is sure that nothing has it
        allocation["allocations"][group]["resources"]["PGPU"] = 2
        self.placement.put(url, allocation, version="1.28")
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.verify.startup_check"))
        self.restart_host("host1")
        self.period()
        self.assertNotIn(str(Kind.ALLOCATION_DIFFERS), log.output)
        for _ in range(3):
            self.period()
        self.assertEqual(1, log.output.count(str(Kind.ALLOCATION_DIFFERS)), log.output)
        self.assertIn("nova-gpu verify --repair", log.output)
        self.assertEqual(2, len(self.recorded(self.boot(self.gpu_flavor(2)))))

    def test_what_is_missing_is_written_again(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        before = self.allocations(server)
        self.placement.delete(f"/allocations/{server['id']}")
        self.restart_host("host1")
        self.period()
        self.assertEqual(before, self.allocations(server))
