# SPDX-License-Identifier: Apache-2.0
"""Stops and starts against stand-ins for Placement and libvirt.

All of nova-gpu between them is real; the functional tests have a real Placement.
"""

from __future__ import annotations

import contextlib
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_concurrency import lockutils

from nova_gpu.core import exception
from nova_gpu.virt.lifecycle import left_domains
from nova_gpu.virt.lifecycle.start import Kind
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.bases.stops import RELEASES, StartsTestCase, StopsTestCase
from tests.fixtures.compute import devices


class StopTest(StopsTestCase):
    def test_keeps(self) -> None:
        """What it is not to give back, or could not ask for again"""
        for specs, task in (
            ({"gpus": "= 2"}, task_states.POWERING_OFF),
            (RELEASES | {"gpu:on_stop": "relaese"}, task_states.POWERING_OFF),
            (RELEASES | {"gpus": "= 1"}, task_states.POWERING_OFF),
            (RELEASES | {"gpus": "many"}, task_states.POWERING_OFF),
            (RELEASES, task_states.REBOOTING),
        ):
            with self.subTest(specs, task=task):
                instance = self.boot({"gpus": "= 2"})
                instance.flavor.extra_specs = specs
                instance.task_state = task
                self.stops.stopped(instance)
                self.assertEqual([ONE, TWO], self.has(instance))
                self.assertTrue(self.rendered(instance))
                self.forget(instance)

    def forget(self, instance: objects.Instance) -> None:
        self.compute.delete(instance)
        self.nova._release_assigned_resources(instance.resources)
        del self.placement.counted[instance.uuid]

    def test_a_guest_that_runs_keeps_them(self) -> None:
        instance = self.boot()
        self.compute.libvirt.domains[instance.uuid].running = True
        self.stop(instance)
        self.assertIn("the guest runs", self.log.output)
        self.assertEqual([ONE, TWO], self.has(instance))

    def test_a_period_leaves_who_goes_on(self) -> None:
        instance, lost = self.boot(), RuntimeError("lost")
        with mock.patch.object(self.counting.tracker, "release", side_effect=lost):
            self.stop(instance)
        self.assertIn("Cannot release the GPUs of the stopped instance", self.log.output)
        self.compute.period()
        with lockutils.lock(instance.uuid, "nova-"):  # as Nova deletes it
            self.stops.settle(self.gpus.ledger.now)
        self.assertEqual([ONE, TWO], self.has(instance))
        self.refuses = nova_exception.UnexpectedTaskStateError(
            instance_uuid=instance.uuid, expected={}, actual={}
        )
        self.stops.settle(self.gpus.ledger.now)
        self.assertEqual([ONE, TWO], self.has(instance))
        self.refuses = None
        self.stops.settle(self.gpus.ledger.now)
        self.assertNothing(instance)
        self.assertIsNone(instance.task_state)
        # Nobody starts it meanwhile, and nobody who does something else is disturbed.
        self.assertIn(
            {"expected_vm_state": [vm_states.STOPPED], "expected_task_state": [None]}, self.saved
        )


class CountingTest(StartsTestCase):
    """Of a start it is counted whole what the instance gets, or nothing."""

    def test_a_start_that_fails(self) -> None:
        """If nobody hears of it, it says why, and a period does the rest."""
        for answers in (True, False):
            starting = self.gpus.starts.starting(self.instance, Kind.REBOOT)
            with contextlib.suppress(ZeroDivisionError), starting as start:
                self.assertTrue(start and start.claimed)
                self.assertEqual([ONE, TWO], self.has(self.instance))
                self.placement.answers = answers
                raise ZeroDivisionError
            if answers:
                self.assertNothing(self.instance)
        self.assertIn("its new GPUs cannot be released now", self.log.output)

    def test_fewer_free_than_placement_counts(self) -> None:
        """It is given back again what it was claimed with."""
        with mock.patch.object(self.nova, "provider_tree", None):
            refused = self.assertRaises(exception.NoneFree, self.counting.count, self.instance)
        self.assertIn("not as many GPUs free as Placement counts", str(refused))
        self.assertNothing(self.instance)

    def test_a_reboot_that_a_start_of_the_service_repeats(self) -> None:
        """It ends neither the service nor, if that runs, in silence."""
        starts = self.gpus.starts
        self.gpus.refusals.starts.is_repeating = True
        self.instance.task_state = task_states.REBOOT_STARTED  # of a container: it was a soft one
        with mock.patch.object(self.nova, "provider_tree", None):
            with starts.starting(self.instance, Kind.REBOOT) as start:
                self.assertIsNone(start)
            refused = nova_exception.ComputeResourcesUnavailable
            soft = starts.starting(self.instance, Kind.SOFT_REBOOT)
            self.assertRaises(refused, soft.__enter__)
            self.gpus.refusals.starts.is_repeating = False
            later = starts.starting(self.instance, Kind.REBOOT)
            self.assertRaises(refused, later.__enter__)

    def test_what_is_not_saved_is_not_done(self) -> None:
        tracker, lost = self.counting.tracker, RuntimeError("the database is away")
        fails = fixtures.MockPatch("nova.objects.Instance.save", side_effect=lost)
        one = {self.group: {"PGPU": 1}}

        def own() -> list[int]:
            assigned = self.nova.assigned_resources[self.group]["PGPU"]
            return [len(self.instance.resources), len(assigned)]

        with fails:
            self.assertRaises(RuntimeError, tracker.hand_out, self.instance, one)
        self.assertEqual([0, 0], own())
        tracker.hand_out(self.instance, one)
        self.assertEqual([1, 1], own())
        resources = list(self.instance.resources)
        with fails:
            self.assertRaises(RuntimeError, tracker.release, self.instance, resources)
        self.assertEqual([1, 1], own())
        tracker.release(self.instance, resources)
        self.assertEqual([0, 0], own())


class ReleaseTest(StopsTestCase):
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
