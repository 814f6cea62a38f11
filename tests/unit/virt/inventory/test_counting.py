# SPDX-License-Identifier: Apache-2.0
"""What an instance starts with is counted; tests/functional/test_counted.py has whole clouds."""

from __future__ import annotations

import contextlib
import datetime
import types
from unittest import mock

import fixtures
from nova import objects
from oslo_utils import timeutils

from nova_gpu.core import exception, names
from nova_gpu.core.placement import reserved_hosts
from nova_gpu.virt.lifecycle.start import Kind, Start
from nova_gpu.virt.usage import allocations
from nova_gpu.virt.usage.allocations import Allocations
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.bases.stops import OTHER, RELEASES, StartsTestCase
from tests.fixtures.compute import devices
from tests.fixtures.histories import NODENAME


class StartTest(StartsTestCase):
    def test_gets_some_again(self) -> None:
        with self.starting() as start:
            self.assertTrue(start and start.claimed)
            self.assertEqual([ONE, TWO], self.has(self.instance))
        self.assertEqual([ONE, TWO], self.has(self.instance))
        with self.starting() as start:
            self.assertFalse(start and start.claimed, "it has them")

    def starting(self) -> contextlib.AbstractContextManager[Start | None]:
        return self.gpus.starts.starting(self.instance, Kind.REBOOT)

    def test_a_start_that_fails(self) -> None:
        """If nobody hears of it, it says why, and a period does the rest."""
        for answers in (True, False):
            with contextlib.suppress(ZeroDivisionError), self.starting():
                self.placement.answers = answers
                raise ZeroDivisionError
            if answers:
                self.assertNothing(self.instance)
        self.assertIn("its new GPUs cannot be released now", self.log.output)

    def test_fewer_free_than_placement_counts(self) -> None:
        """It is given back again what it was claimed with."""
        with mock.patch.object(self.nova, "provider_tree", None):
            self.assertRefused("not as many GPUs free as Placement counts")
        self.assertNothing(self.instance)

    def test_what_is_not_saved_is_not_done(self) -> None:
        tracker, wanted = self.counting.tracker, {self.group: {"PGPU": 1}}
        lost = RuntimeError("the database is away")
        fails = fixtures.MockPatch("nova.objects.Instance.save", side_effect=lost)

        def own() -> tuple[list[str], list[str]]:
            assigned = self.nova.assigned_resources[self.group]["PGPU"]
            found = (
                [each.identifier for each in few] for few in (self.instance.resources, assigned)
            )
            return tuple(found)  # type: ignore[return-value]

        with fails:
            self.assertRaises(RuntimeError, tracker.hand_out, self.instance, wanted)
        self.assertEqual(([], []), own())
        tracker.hand_out(self.instance, wanted)
        had = own()
        self.assertEqual((1, 1), tuple(map(len, had)))
        with fails:
            given = list(self.instance.resources)
            self.assertRaises(RuntimeError, tracker.take_back, self.instance, given)
        self.assertEqual(had, own())
        # Whose they are is known meanwhile.
        with mock.patch.object(self.nova, "_claim_resources") as claim:
            claim.side_effect = lambda _: self.assertIs(self.instance, tracker.handing_out)
            tracker.hand_out(self.instance, wanted)
        self.assertIsNone(tracker.handing_out)
        self.assertEqual(had, own())
        tracker.take_back(self.instance, given)
        self.assertEqual(([], []), own())

    def test_nothing_is_asked_of_who_has_all(self) -> None:
        self.counting.count(self.instance)
        self.compute.spawn(self.instance)
        self.placement.answers = False
        with mock.patch.object(self.placement, "get_allocs_for_consumer", side_effect=OSError):
            self.assertFalse(self.counting.count(self.instance))
            # Neither its domain nor Placement, as last read, says so of this one.
            del self.compute.libvirt.domains[self.instance.uuid]
            self.compute.period()
            self.assertRaises(exception.ProvidersUnknown, self.counting.count, self.instance)

    def test_what_nova_may_have_deleted(self) -> None:
        """It is reserved until it is counted again, and its start counts it."""
        part, whole_node = {"VCPU": 1}, {"total": 8, "reserved": 0, "allocation_ratio": 1.0}
        self.useFixture(fixtures.MockPatchObject(allocations, "node_part", return_value=part))
        node = self.compute.tree.data(NODENAME).uuid
        self.compute.tree.update_inventory(node, {"VCPU": whole_node})
        self.counting.count(self.instance)
        self.compute.spawn(self.instance)
        self.compute.period()
        whole = self.placement.counted.pop(self.instance.uuid)
        ledger = self.gpus.ledger
        ledger.read_allocations(lambda *_: Allocations(node, {node: {}, self.group: {}}))
        ledger.wrote_allocation(self.instance.uuid)
        self.assertEqual(frozenset(), ledger.now.uncovered())
        self.counting.doubt(self.instance)
        self.assertEqual(devices([ONE, TWO]), ledger.now.uncovered())
        self.assertEqual({self.instance.uuid: part}, ledger.now.lacking())
        self.instance.task_state = "rebuild_spawning"
        self.compute.publish()
        self.instance.task_state = None
        kept = [self.compute.tree.data(uuid).inventory for uuid in (node, self.group)]
        self.assertEqual([1, 2], [kept[0]["VCPU"]["reserved"], kept[1]["PGPU"]["reserved"]])
        # What is reserved for it makes room for it, though the host is full.
        self.assertFalse(self.counting.count(self.instance))
        kept = [self.compute.tree.data(uuid).inventory for uuid in (node, self.group)]
        self.assertEqual([0, 0], [kept[0]["VCPU"]["reserved"], kept[1]["PGPU"]["reserved"]])
        self.assertEqual(whole, self.placement.counted[self.instance.uuid])
        self.assertEqual(frozenset(), ledger.now.uncovered())


class ChooseTest(StartsTestCase):
    def test_others_have_them(self) -> None:
        self.placement.counted[OTHER] = {self.group: {"resources": {"PGPU": 1}}}
        refused = self.assertRefused("at most 1 free on its host")
        self.assertIn(f"in use by {OTHER}", str(refused))

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
        self.counting.count(self.instance)
        self.assertEqual([ONE, TWO], self.has(self.instance))

    def test_other_than_the_image_wants(self) -> None:
        wanted = {"traits_required": ["CUSTOM_GPU_ARCH_FERMI"]}
        image = types.SimpleNamespace(properties=wanted)
        with mock.patch.object(objects.Instance, "image_meta", image):
            self.assertRefused("at most 2 free")
