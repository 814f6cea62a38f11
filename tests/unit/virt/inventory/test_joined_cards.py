# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, Link
from nova_gpu.virt import sets
from nova_gpu.virt.inventory import joined_cards
from tests.fixtures import cards
from tests.fixtures.bases.host import HostTestCase

A, B, C = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"


def pair() -> tuple[GPU, GPU]:
    one, other = cards.card(A), cards.card(B)
    return (
        dataclasses.replace(one, links=(Link(other.address, 4),)),
        dataclasses.replace(other, links=(Link(one.address, 4),)),
    )


class LinksTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.log = self.useFixture(fixtures.FakeLogger())
        self.cards = joined_cards.JoinedCards(sets.NoSets(), self.host.roots, serves=True)

    def test_cards_with_vfio_stay_joined(self) -> None:
        self.cards.look([*pair(), cards.card(C)])
        self.cards.look([cards.card(A), cards.card(B), cards.card(C)])
        both = frozenset(cards.addresses(A, B))
        self.assertEqual(dict.fromkeys(both, both), dict(self.cards.joined()))

    def test_split_where_the_operator_says_so(self) -> None:
        self.config.config(group="gpu", split_link_groups=True)
        self.cards.look(pair())
        self.assertEqual({}, dict(self.cards.joined()))
        self.assertIn(f"Direct links join GPUs {A}, {B},", self.log.output)
