# SPDX-License-Identifier: Apache-2.0
"""Stops and starts against stand-ins for Placement and libvirt.

All of nova-gpu between them is real; the functional tests have a real Placement.
"""

from __future__ import annotations

import contextlib
import datetime
import types
from unittest import mock

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_concurrency import lockutils
from oslo_utils import timeutils

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement import reserved_hosts
from nova_gpu.virt.usage import records
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.bases.stops import OTHER, RELEASES, StopsTestCase
from tests.fixtures.compute import devices


class StopTest(StopsTestCase):
    def test_gives_back(self) -> None:
        instance = self.boot()
        self.assertEqual([ONE, TWO], self.has(instance))
        self.events.clear()
        self.stop(instance)
        self.assertNothing(instance)
        # Who bills by these bills nothing from now on.
        self.assertEqual([("gpu.release", 2, instance.uuid)], self.told())
        self.assertIn(f"Released GPUs {ONE}, {TWO}", self.log.output)
        usage = self.gpus.ledger.now
        self.assertEqual(frozenset(), usage.taken() & devices([ONE, TWO]))

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

    def fails_to_record(self, instance: objects.Instance) -> None:
        with mock.patch.object(self.stops.tracker, "take_back", side_effect=RuntimeError("lost")):
            self.stop(instance)
        self.assertIn("Cannot release the GPUs of the stopped instance", self.log.output)
        self.assertEqual([ONE, TWO], self.has(instance))

    def test_what_is_not_recorded_a_period_records(self) -> None:
        instance = self.boot()
        self.fails_to_record(instance)
        self.compute.period()
        self.stops.settle(self.gpus.ledger.now)
        self.assertNothing(instance)
        self.assertIsNone(instance.task_state)
        # Nobody starts it meanwhile, and nobody who does something else is disturbed.
        self.assertIn(
            {"expected_vm_state": [vm_states.STOPPED], "expected_task_state": [None]}, self.saved
        )

    def test_a_period_leaves_who_goes_on(self) -> None:
        instance = self.boot()
        self.fails_to_record(instance)
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


class StartTest(StopsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.boot()
        self.stop(self.instance)

    @property
    def asked(self) -> FlavorRequest:
        return records.request_of(self.instance)

    def test_gets_some_again(self) -> None:
        with self.stops.starting(self.instance, self.asked) as again:
            self.assertTrue(again)
            self.assertEqual([ONE, TWO], self.has(self.instance))
        self.assertEqual([ONE, TWO], self.has(self.instance))
        with self.stops.starting(self.instance, self.asked) as again:
            self.assertFalse(again, "it has them")

    def test_a_start_that_fails(self) -> None:
        with contextlib.suppress(ZeroDivisionError), self.stops.starting(self.instance, self.asked):
            raise ZeroDivisionError
        self.assertNothing(self.instance)

    def test_a_start_that_fails_and_nobody_hears_of_it(self) -> None:
        """It says why it failed, and a period does the rest."""
        with contextlib.suppress(ZeroDivisionError), self.stops.starting(self.instance, self.asked):
            self.placement.answers = False
            raise ZeroDivisionError
        self.assertIn("its new GPUs cannot be released now", self.log.output)

    def assertRefused(self, said: str) -> exception.NoneFree:
        refused = self.assertRaises(
            exception.NoneFree, self.stops.take_again, self.instance, self.asked
        )
        self.assertIn(said, str(refused))
        self.assertTrue(self.stops.is_released(self.instance, self.asked))
        return refused

    def test_others_have_them(self) -> None:
        self.placement.counted[OTHER] = {self.group: {"resources": {"PGPU": 1}}}
        refused = self.assertRefused("at most 1 free on its host")
        self.assertIn(f"in use by {OTHER}", str(refused))

    def test_fewer_free_than_placement_counts(self) -> None:
        """It is given back again what it was claimed with."""
        with mock.patch.object(self.nova, "provider_tree", None):
            self.assertRefused("not as many GPUs free as Placement counts")
        self.assertNothing(self.instance)

    def test_drained(self) -> None:
        self.placement.node_traits = {names.DRAINED}
        self.assertRefused("its host is drained; start it when some are free, or have it come")
        for word, said in (("true", "openstack gpu start has it come"), ("perhaps", "shelve and")):
            self.instance.flavor.extra_specs = RELEASES | {"gpu:on_stop_move": word}
            self.assertRefused(said)

    def test_kept_for_who_is_not_preemptible(self) -> None:
        until = timeutils.utcnow() + datetime.timedelta(minutes=10)
        self.placement.node_traits = {reserved_hosts.trait(until)}
        self.instance.flavor.extra_specs = RELEASES | {"gpu:preemptible": "1h"}
        self.assertRefused("instances that are not preemptible, for now; start it when")
        self.instance.flavor.extra_specs = RELEASES
        self.stops.take_again(self.instance, self.asked)
        self.assertEqual([ONE, TWO], self.has(self.instance))

    def test_other_than_the_image_wants(self) -> None:
        wanted = {"traits_required": ["CUSTOM_GPU_ARCH_FERMI"]}
        image = types.SimpleNamespace(properties=wanted)
        with mock.patch.object(objects.Instance, "image_meta", image):
            self.assertRefused("at most 2 free")
