# SPDX-License-Identifier: Apache-2.0
"""What a host's periods find, publish and count; each part has tests of its own."""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.conf import CONF
from nova_gpu.core import availability, exception
from nova_gpu.core.scheduling import stats
from nova_gpu.virt import cards, counters
from nova_gpu.virt.ended_moves import EndedMoves
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from tests.fixtures import hosts
from tests.fixtures.bases.compute import DIVIDED, ONE, TWO, ComputeTestCase
from tests.fixtures.compute import Compute
from tests.fixtures.histories import NODENAME

NEW = "0000:d8:00.0"
# Others' tests of a period have it replaced.
_settle = EndedMoves.settle


class PlacementOfOne:
    """One provider, and what Placement says is allocated of it"""

    def __init__(self, provider_uuid: str) -> None:
        self.provider_uuid = provider_uuid
        self.looks = 0

    def get_provider_by_name(self, context: object, name: str) -> dict[str, str]:
        return {"uuid": uuids.node}

    def get_providers_in_tree(self, context: object, uuid: str) -> list[dict[str, Any]]:
        group = f"{NODENAME}_gpu_10de_2335_pci"
        named = {uuids.node: NODENAME, self.provider_uuid: group}
        return [{"uuid": item, "name": named[item], "generation": 3} for item in named]

    def get_allocations_for_resource_provider(self, context: object, uuid: str) -> Any:
        self.looks += uuid == self.provider_uuid
        return types.SimpleNamespace(allocations={uuids.stranger: {"resources": {"PGPU": 1}}})


class HostGPUsTest(ComputeTestCase):
    def inventory(self) -> tuple[int, int]:
        found = self.compute.tree.data(self.provider).inventory["PGPU"]
        return found["total"], found["reserved"]

    def offered(self) -> dict[str, str | None]:
        """The whole cards, each with why nobody new is given it"""
        return {
            str(a): availability.text(group.unavailable.get(a, ()))
            for group in self.gpus._published.groups().values()
            for a in group.gpus
        }

    def resources(self) -> set[objects.Resource]:
        return set(self.compute.tree.data(self.provider).resources["PGPU"])

    def boot(self) -> objects.Instance:
        instance = self.compute.instance({"gpus": "1"}, (self.provider, ONE))
        self.compute.spawn(instance)
        return instance

    def test_free(self) -> None:
        """Whole ones, and shared ones with room, as the scheduler reads them too"""
        publication = self.gpus.publication
        self.assertEqual([DIVIDED], [str(each) for each in self.gpus.vgpus.cards.look.cards])
        told = stats.loads(publication.stats() or "")
        self.assertEqual((3, 3, 1), (publication.free(), told.cards, told.divided.free))
        instance = self.boot()
        self.compute.period()
        self.assertEqual(2, publication.free())
        self.compute.delete(instance)
        self.compute.period()
        self.assertEqual(3, publication.free())
        bare = self.useFixture(Compute(hosts.Host(self.useFixture(fixtures.TempDir()).path)))
        self.assertIsNone(bare.gpus.publication.stats())
        self.assertEqual([bare.tree.data(NODENAME).uuid], bare.tree.get_provider_uuids())
        self.assertFalse(bare.gpus.has_gpus)

    def test_cards_that_come_go_and_fail(self) -> None:
        self.host.remove(TWO)
        self.host.add_gpu(NEW, "10de", "2335", driver="vfio-pci")
        look: Callable[[], Any] = self.gpus.periods.cards.look
        say, words = look(), f"GPU {NEW} (H200 SXM 141GB) is offered to instances"
        self.assertNotIn(words, self.log.output, "said once it is known whose")
        say()
        look()()
        self.assertEqual(1, self.log.output.count(words))
        gone = {ONE: None, NEW: None, TWO: "it is no longer on the PCI bus"}
        self.assertEqual(gone, self.offered())
        lost = exception.DiscoveryFailed("/sys", "no sysfs")
        with fixtures.MockPatchObject(discovery.Discovery, "find", side_effect=lost):
            self.assertIsNone(look())
        self.assertEqual(gone, self.offered())
        self.assertIn("nova-compute goes on with the GPUs' last known state", self.log.output)
        card = next(each for each in self.gpus._published.cards() if str(each.address) == NEW)
        self.gpus.releases.quarantine(card, "it is mute", "boot the host")
        look()
        self.assertIn("it is mute", str(self.offered()[NEW]))
        self.assertIsNone(self.offered()[ONE])

    def test_look_that_fails_gives_nobody_a_card(self) -> None:
        """Until one does not"""
        seen = counters.read(pathlib.Path(CONF.state_path))
        self.assertEqual(3, seen.free)
        with fixtures.MockPatchObject(cards.Cards, "look", side_effect=ZeroDivisionError):
            self.gpus.periods.refresh()
        self.assertIn("GPU discovery failed", self.log.output)
        self.assertEqual(seen, counters.read(pathlib.Path(CONF.state_path)))
        self.assertEqual(0, self.gpus.publication.free())
        self.compute.publish()
        self.assertEqual((2, 2), self.inventory())
        self.compute.period()
        self.assertEqual(((2, 0), 3), (self.inventory(), self.gpus.publication.free()))
        self.assertGreater(counters.read(pathlib.Path(CONF.state_path)).period_at, seen.period_at)

    def test_inventory_that_fails_takes_no_claim(self) -> None:
        """As at the first of a service, whose tree Placement filled without the devices"""
        before = self.resources()
        self.compute.tree.update_resources(self.provider, {})
        with fixtures.MockPatchObject(CardInventory, "publish", side_effect=ZeroDivisionError):
            self.compute.publish()
        self.assertIn("Failed to publish all of this host's GPUs", self.log.output)
        self.assertEqual(set(), self.resources())
        self.compute.publish()
        self.assertEqual((2, before), (len(before), self.resources()))

    def test_moves_are_ended_once_the_database_has_answered(self) -> None:
        gpus, libvirt, placement = self.gpus, self.compute.libvirt, PlacementOfOne(self.provider)
        unknown = nova_exception.MigrationNotFound(migration_id=uuids.stranger)
        for owner, name, what in (
            (objects.Migration, "get_by_uuid", lambda *_: (_ for _ in ()).throw(unknown)),
            (type(self.compute), "reportclient", placement),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, what))
        for ledger, looks in ((Ledger(), 0), (gpus.ledger, 1)):
            reader = UsageReader(libvirt, ledger, mock.Mock())
            _settle(EndedMoves(libvirt, ledger, gpus.assigned, gpus.releases, reader, mock.Mock()))
            self.assertEqual(looks, placement.looks)
