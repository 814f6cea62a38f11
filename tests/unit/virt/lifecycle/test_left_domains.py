# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states

from nova_gpu.virt.lifecycle import left_domains
from tests.fixtures.bases import stops
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.compute import devices


class ReleaseTest(stops.StopsTestCase):
    """The instance is on another host, and its domain here is shut off."""

    def setUp(self) -> None:
        super().setUp()
        self.moves: list[objects.Migration] = []
        listed = "nova.objects.MigrationList.get_in_progress_and_error"
        self.useFixture(fixtures.MonkeyPatch(listed, lambda *_: self.moves))
        self.server = self.boot({"gpus": "= 2"})
        self.server.task_state, self.server.host = None, "another"
        self.elsewhere = self.compute.instances.pop(self.server.uuid)
        self.compute.period()
        self.compute.instances[self.server.uuid] = self.elsewhere

    def release(self) -> bool:
        """Return whether the GPUs are released."""
        self.get_hostname = self.compute.libvirt.get_hostname
        gpus = self.compute.gpus
        left_domains.release(self, gpus.ledger.now, gpus.releases, gpus.stops.parts)
        taken = gpus.ledger.now.taken() & devices([ONE, TWO])
        self.assertEqual(self.rendered(self.server), bool(taken))
        return not taken

    def move(self, status: str) -> None:
        self.moves.append(objects.Migration(instance_uuid=self.server.uuid, status=status))

    def test_of_a_failed_move(self) -> None:
        self.move("error")
        self.assertTrue(self.release())
        self.assertIn(f"Removed GPUs {ONE}, {TWO} from", self.log.output)
        self.assertIn(f"GPU {ONE} is clean", self.log.output)

    def test_what_may_come_back(self) -> None:
        self.move("finished")
        self.assertFalse(self.release())
        self.moves.clear()
        for name, value in (
            ("task_state", task_states.RESIZE_PREP),
            ("host", "nova-host"),
            ("host", None),
        ):
            with self.subTest(name, value=value):
                self.compute.config(host="nova-host")
                before = getattr(self.server, name)
                setattr(self.server, name, value)
                self.assertFalse(self.release())
                setattr(self.server, name, before)
        self.assertTrue(self.release())

    def test_what_is_not_known(self) -> None:
        """Whether it runs, what Nova knows of it, or what libvirt did"""
        domain = self.compute.libvirt.domains[self.server.uuid]
        domain.running = True
        self.assertFalse(self.release())
        domain.running = False
        missing = nova_exception.InstanceNotFound(instance_id=self.server.uuid)
        with fixtures.MockPatch("nova.objects.Instance.get_by_uuid", side_effect=missing):
            self.assertFalse(self.release())
        self.assertNotIn("Failed to release", self.log.output)
        lost = RuntimeError("lost")
        with fixtures.MockPatchObject(self, "write_instance_config", side_effect=lost):
            self.assertFalse(self.release())
        self.assertIn("will retry in the next period: lost", self.log.output)
