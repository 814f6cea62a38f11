# SPDX-License-Identifier: Apache-2.0
"""Stops and starts against stand-ins for Placement and libvirt.

All of nova-gpu between them is real; the functional tests have a real Placement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import types
from collections.abc import Mapping
from typing import Any
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree, resource_tracker, task_states, vm_states
from oslo_concurrency import lockutils
from oslo_utils import timeutils

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement import reserved_hosts
from nova_gpu.notifications import Event
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.lifecycle.stops import Stops
from nova_gpu.virt.usage import records
from tests.fixtures.compute import devices
from tests.fixtures.histories import NODENAME, Domain
from tests.unit.virt import test_host_gpus
from tests.unit.virt.test_host_gpus import ONE, TWO

RELEASES = {"gpus": "= 2", "gpu:on_stop": "release"}
OTHER = "0b9c8d7e-1111-4222-8333-444455556666"


class _Placement:
    """Nova's report client, of the inventories and traits that the driver has published

    :ivar counted: by consumer, what it has of which provider
    :ivar node_traits: what the compute node has beside its own
    """

    def __init__(self, tree: provider_tree.ProviderTree) -> None:
        self._tree = tree
        self.counted: dict[str, dict[str, Any]] = {}
        self.node_traits: set[str] = set()
        self.answers = True

    def used(self, provider_uuid: str) -> int:
        found = (each.get(provider_uuid, {}) for each in self.counted.values())
        return sum(sum(each.get("resources", {}).values()) for each in found)

    def get(self, url: str, version: str) -> Any:
        *_, uuid, what = url.split("/")
        data = self._tree.data(uuid)
        if what == "traits":
            more = self.node_traits if data.name == NODENAME else set()
            answer = {"traits": sorted(data.traits | more)}
        elif what == "inventories":
            answer = {"inventories": data.inventory}
        else:
            answer = {"usages": dict.fromkeys(data.inventory, self.used(uuid))}
        return types.SimpleNamespace(status_code=200, json=lambda: answer)

    def get_provider_by_name(self, context: object, name: str) -> Mapping[str, str]:
        return {"uuid": self._tree.data(name).uuid}

    def get_allocations_for_resource_provider(self, context: object, uuid: str) -> Any:
        found = {consumer: each for consumer, each in self.counted.items() if uuid in each}
        return types.SimpleNamespace(allocations=found)

    def get_allocs_for_consumer(self, context: object, consumer: str) -> dict[str, Any]:
        return {"allocations": dict(self.counted.get(consumer, {})), "consumer_generation": 1}

    def put_allocations(self, context: object, consumer: str, payload: Mapping[str, Any]) -> bool:
        if not self.answers:
            raise nova_exception.PlacementAPIConnectFailure
        before = self.counted.get(consumer, {})
        self.counted[consumer] = dict(payload["allocations"])
        for uuid in self.counted[consumer]:
            for each in self._tree.data(uuid).inventory.values():
                if self.used(uuid) > each["total"] - each["reserved"]:
                    self.counted[consumer] = before
                    return False
        return True


class _Guest(Domain):
    """What is asked of ``nova.virt.libvirt.guest.Guest``"""

    def get_xml_desc(self, dump_inactive: bool = False, dump_sensitive: bool = False) -> str:
        return super().get_xml_desc(dump_inactive)

    def is_active(self) -> bool:
        return self.running


class StopsTestCase(test_host_gpus.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.events: list[Event] = []
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.notifications.emit", self.events.append))
        self.compute.config(host=NODENAME)
        self.group = self.provider
        self.placement = _Placement(self.compute.tree)
        self.nova = resource_tracker.ResourceTracker(NODENAME, mock.Mock(), mock.Mock())
        self.nova.provider_tree = self.compute.tree
        assigned = dataclasses.replace(self.gpus.assigned, placement=lambda: self.placement)
        tracker = Tracker(lambda: self.nova)
        self.stops = Stops(self, tracker, self.gpus.releases, assigned, self.gpus.stops.parts)
        self.saved: list[Mapping[str, Any]] = []
        self.refuses: Exception | None = None
        patch = fixtures.MonkeyPatch("nova.objects.Instance.save", lambda *a, **kw: self.save(**kw))
        self.useFixture(patch)
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.objects.Instance.get_by_uuid",
                lambda cls, context, uuid, **kwargs: self.compute.instances[uuid],
            )
        )

    # Libvirt

    def get_guest(self, instance: objects.Instance) -> _Guest:
        try:
            domain = self.compute.libvirt.domains[instance.uuid]
        except KeyError:
            raise nova_exception.InstanceNotFound(instance_id=instance.uuid) from None
        return _Guest(domain.uuid, domain.xml, domain.running)

    def write_instance_config(self, xml: str) -> None:
        (domain,) = self.compute.libvirt.domains.values()
        domain.xml = xml

    # Nova

    def save(self, **expected: Any) -> None:
        if self.refuses and expected:
            raise self.refuses
        self.saved.append(expected)

    def boot(self, specs: Mapping[str, str] = RELEASES) -> objects.Instance:
        """An instance with both cards, and stopped: its guest is shut off, and it has the task."""
        had = (self.group, ONE), (self.group, TWO)
        attributes = {"user_id": "me", "host": CONF.host, "vm_state": vm_states.ACTIVE}
        instance = self.compute.instance(specs, *had, **attributes)
        self.nova.assigned_resources[self.group]["PGPU"].update(instance.resources)
        self.placement.counted[instance.uuid] = {self.group: {"resources": {"PGPU": 2}}}
        self.compute.spawn(instance)
        self.compute.libvirt.domains[instance.uuid].running = False
        instance.task_state = task_states.POWERING_OFF
        return instance

    def stop(self, instance: objects.Instance) -> None:
        self.stops.stopped(instance)
        instance.vm_state, instance.task_state = vm_states.STOPPED, None

    def has(self, instance: objects.Instance) -> list[str]:
        """What it has; each of those who count says the same."""
        found = sorted(each.identifier for each in instance.resources)
        assigned = self.nova.assigned_resources[self.group]["PGPU"]
        self.assertEqual(found, sorted(each.identifier for each in assigned))
        self.assertEqual(len(found), self.placement.used(self.group))
        return found

    def told(self) -> list[tuple[str, int | None, str | None]]:
        """Of each notification its type, how many GPUs and whose"""
        return [(str(each.type), each.count, each.instance_uuid) for each in self.events]

    def rendered(self, instance: objects.Instance) -> bool:
        return "hostdev" in self.compute.libvirt.domains[instance.uuid].xml

    def assertNothing(self, instance: objects.Instance) -> None:
        self.assertEqual([], self.has(instance))
        self.assertFalse(self.rendered(instance))
        self.assertTrue(self.stops.is_released(instance, records.request_of(instance)))


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
