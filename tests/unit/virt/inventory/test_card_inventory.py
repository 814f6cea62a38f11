# SPDX-License-Identifier: Apache-2.0
"""Claims of whole cards through Nova's own resource tracker, and cards that go together."""

from __future__ import annotations

import dataclasses
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.compute import provider_tree, resource_tracker
from oslo_config import fixture as config_fixture
from oslo_utils import uuidutils

from nova_gpu.conf import CONF
from nova_gpu.core.flavor import request
from nova_gpu.core.model import GPU, DeliveryMode, GroupKey, Link
from nova_gpu.core.scheduling import stats
from nova_gpu.virt import card_sets
from nova_gpu.virt.delivery import deliveries, guest_address_space
from nova_gpu.virt.health import failed_starts
from nova_gpu.virt.inventory import card_inventory, joined_cards, neighbours, tracker
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.usage import ledger
from nova_gpu.virt.usage.records import Records
from tests.fixtures import cards
from tests.fixtures.bases.host import HostTestCase

# A and B have links, and C and D.
A, B, C, D = (f"0000:{bus}:00.0" for bus in ("04", "05", "08", "09"))
GPUS = [cards.placed(address, peers=[peer]) for address, peer in ((A, B), (B, A), (C, D), (D, C))]
KEY = GroupKey("10de", "1091", DeliveryMode.LXC)
NODE = "node1"
OTHER_NODES = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class StockTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.ledger = ledger.Ledger()
        config = self.useFixture(config_fixture.Config(CONF)).config
        config(group="libvirt", virt_type="kvm")
        config(state_path=str(self.root))
        roots = self.host.roots
        own = deliveries.Deliveries(
            roots, lambda _: None, self.ledger, lambda: 9000000, lambda: 8002002
        )
        own.sets = card_sets.Sets()
        links = joined_cards.JoinedCards(card_sets.Sets(), roots, serves=True)
        self.tracker = resource_tracker.ResourceTracker("host", mock.Mock(), mock.Mock())
        beside = neighbours.Neighbours(tracker.Tracker(lambda: self.tracker), roots)
        self.published = card_inventory.CardInventory(
            *(self.ledger, own, links, beside), failed_starts.FailedStarts(self.root / "f", roots)
        )
        self.tree = self.tracker.provider_tree = provider_tree.ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def look(self, *without: str, **unavailable: dict[str, str]) -> None:
        gpus = [gpu for gpu in GPUS if str(gpu.address) not in without]
        by_address = {
            name: {cards.addresses(address)[0]: reason for address, reason in reasons.items()}
            for name, reasons in unavailable.items()
        }
        self.published.take_in(gpus, DeliveryMode.LXC, cards.unavailable(**by_address))

    def publish(self) -> None:
        self.published.publish(self.tree, NODE, "LXC")

    def record(self, **addresses: str) -> None:
        provider = self.published.provider_uuids[KEY]
        counted = {uuid: frozenset({(provider, address)}) for uuid, address in addresses.items()}
        self.ledger.read_records(lambda known: Records(counted=counted))

    def claim(self, count: int) -> list[str]:
        allocations = {self.published.provider_uuids[KEY]: {"resources": {"PGPU": count}}}
        return sorted(
            resource.identifier for resource in self.tracker._claim_resources(allocations)
        )

    def assertInventory(self, total: int, reserved: int) -> None:
        self.publish()
        record = self.tree.data(self.published.provider_uuids[KEY]).inventory["PGPU"]
        self.assertEqual((total, reserved), (record["total"], record["reserved"]))

    def test_boards_that_are_offered_apart_now(self) -> None:
        """What an instance has stays in its provider, until it is given back."""
        own = KEY._replace(board="10de:16c0")
        product = dataclasses.replace(GPUS[0].product, board=own.board)
        apart = [dataclasses.replace(gpu, product=product) for gpu in GPUS]

        def groups(gpus: list[GPU]) -> dict[GroupKey, list[str]]:
            self.published.take_in(gpus, DeliveryMode.LXC, {})
            self.publish()
            return {key: sorted(map(str, g.gpus)) for key, g in self.published.groups().items()}

        self.assertEqual({KEY: [A, B, C, D]}, groups(GPUS))
        self.record(first=A)
        for gpus in (apart, GPUS, apart):
            expected = {own: [B, C, D], KEY: [A]} if gpus is apart else {KEY: [A, B, C, D]}
            self.assertEqual(expected, groups(gpus))
        self.assertInventory(1, 0)
        host_report = stats.loads(self.published.report("LXC", stats.NOTHING, stats.UNDIVIDED)).host
        products = {"10de:1091:10de:16c0": 3, "10de:1091": 1}
        self.assertEqual(products, {group.product: group.total for group in host_report.groups})
        # Before the first inspection of a service that starts has the records
        self.published.provider_uuids, known = {}, self.published.provider_uuids
        self.published.take_in(apart, DeliveryMode.LXC, {})
        self.assertEqual({own}, set(self.published.groups()))
        self.published.provider_uuids = known
        self.published.keep_recorded()
        self.assertEqual({own, KEY}, set(self.published.groups()))
        self.record()
        self.assertEqual({own: [A, B, C, D]}, groups(apart))
        self.assertInventory(1, 1)

    def test_claimed_and_gone(self) -> None:
        """The start is refused for that, and not by an exchange"""
        self.look(A)
        self.publish()
        claimant = Claimant(request.of({"gpus": "1"}), cells=frozenset({0}))
        gone, free = (frozenset(cards.addresses(*addresses)) for addresses in ((A,), (B, C, D)))
        provider = self.published.provider_uuids[KEY]
        self.assertEqual(gone, self.published.improve(provider, gone, gone | free, claimant))

    def test_claims_get_what_is_near(self) -> None:
        """The room in one guest is looked up with the host, and not at each claim."""
        with mock.patch.object(guest_address_space, "most", return_value=3) as spy:
            self.look()
            for _ in range(2):
                self.publish()
        spy.assert_called_once()
        record = self.tree.data(self.published.provider_uuids[KEY]).inventory["PGPU"]
        self.assertEqual((4, 3), (record["total"], record["max_unit"]))
        self.assertIn(self.claim(2), ([A, B], [C, D]))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable, self.claim, 3)
        self.assertIn(self.claim(2), ([A, B], [C, D]))

    def test_what_a_domain_or_a_guest_before_has_is_not_drawn(self) -> None:
        self.look()
        self.publish()
        self.ledger.saw_domains({OTHER_NODES: frozenset(cards.addresses(A))})
        self.ledger.was_used(cards.addresses(C))
        self.assertEqual({B, D}, {str(address) for address in self.published.free()})
        self.assertEqual([B, D], self.claim(2))
        self.assertRaises(nova_exception.ComputeResourcesUnavailable, self.claim, 1)
        self.assertEqual(set(), self.published.free())
        self.record()
        self.ledger.cleaned(cards.addresses(C)[0])
        self.assertInventory(4, 1)  # the stranger's

    def test_a_quarantine_while_the_host_is_looked_at_is_not_lost(self) -> None:
        self.look()
        self.published.begin_look()
        self.published.reserve({cards.addresses(D)[0]: cards.reasons("not clean")})
        self.look()
        self.assertInventory(4, 1)
        self.published.begin_look()
        self.look()
        self.assertInventory(4, 0)


class LinksTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.log = self.useFixture(fixtures.FakeLogger())
        self.cards = joined_cards.JoinedCards(card_sets.Sets(), self.host.roots, serves=True)

    def pair(self) -> list[GPU]:
        both = (cards.card(A), cards.addresses(B)), (cards.card(B), cards.addresses(A))
        return [dataclasses.replace(card, links=(Link(*other, 4),)) for card, other in both]

    def test_cards_with_vfio_stay_joined(self) -> None:
        self.cards.look([*self.pair(), cards.card(C)])
        self.cards.look([cards.card(A), cards.card(B), cards.card(C)])
        both = frozenset(cards.addresses(A, B))
        self.assertEqual(dict.fromkeys(both, both), dict(self.cards.joined()))

    def test_split_where_the_operator_says_so(self) -> None:
        self.config.config(group="gpu", split_link_groups=True)
        self.cards.look(self.pair())
        self.assertEqual({}, dict(self.cards.joined()))
        self.assertIn(f"Direct links join GPUs {A}, {B},", self.log.output)
