# SPDX-License-Identifier: Apache-2.0
"""Random histories of a host's cards: they break and are repaired, tests end in every way, the
service is killed. Which cards are offered is compared with what the tests said."""

from __future__ import annotations

import dataclasses
import os
import random
import unittest

from nova_gpu.core.model import PciAddress
from nova_gpu_cardlife.core import gate
from nova_gpu_cardlife.core.gate import Due, Idle, Record
from nova_gpu_cardlife.core.verdict import Verdict
from tests.fixtures.bases import fuzz

HISTORIES, STEPS = int(os.environ.get(fuzz.EXAMPLES, "500")), 40
MINUTE = 60.0
EVENTS = (
    *("claim", "claim", "release", "break", "repair", "driver", "wish"),
    *("quarantine", "out", "kill", "days"),
)
TIMEOUT_S, AT_ONCE, LEAVE_FREE, DAYS = 600, 2, 1, 1


@dataclasses.dataclass
class Card:
    """``is_well`` is the truth; ``record`` and ``changed`` are what the gate knows."""

    is_well: bool = True
    record: Record | None = None
    changed: str | None = None
    has_instance: bool = False
    in_quarantine: bool = False
    since_pass: bool = False  # no failure, change or wish of the operator since a test passed
    ends: Verdict | None = None  # of the test that is running


class Host:
    """The steps of a service as :mod:`nova_gpu_cardlife.tests_of_cards` does them"""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.now = chance, 0.0
        self.cards = {PciAddress.parse(f"0000:{n:02x}:00.0"): Card() for n in range(3, 7)}
        self.chosen: list[PciAddress] = []
        for card in self.cards.values():
            card.record = Record(gate.UNTESTED, "", self.now)
            card.since_pass = True  # what was sold before stays so until its first test

    def reason(self, address: PciAddress) -> str | None:
        card = self.cards[address]
        own = gate.reason(address, card.record, card.changed, TIMEOUT_S)
        if own is None and address in self.chosen:
            own = gate.CHOSEN
        return None if own is None else str(own)

    def is_idle(self, card: Card) -> bool:
        return not (card.has_instance or card.in_quarantine or card.ends)

    def period(self) -> None:
        self.now += MINUTE
        for card in self.cards.values():
            if card.ends and self.chance.random() < 0.6:
                self._end(card)
            if card.in_quarantine:
                card.record = None
        before, self.chosen = self.chosen, []
        idle = {a: card for a, card in self.cards.items() if self.is_idle(card)}
        for address in before:
            card = self.cards[address]
            running = sum(bool(c.ends) for c in self.cards.values())
            is_due = gate.due(card.record, card.changed, self.now, DAYS) is not Due.NO
            if address in idle and is_due and running < AT_ONCE:
                # Instances could not get it for a whole period
                card.record, card.changed = Record(gate.TESTING, "", self.now), None
                unknown = self.chance.random() < 0.2
                ends = Verdict.PASS if card.is_well else Verdict.CRITICAL
                card.ends = Verdict.UNKNOWN if unknown else ends
        room = AT_ONCE - sum(bool(card.ends) for card in self.cards.values())
        waiting = {
            a: Idle("10de:2335", card.record, card.changed)
            for a, card in idle.items()
            if not card.ends and a not in before
        }
        self.chosen = gate.choose(waiting, room, self.now, days=DAYS, leave_free=LEAVE_FREE)

    def _end(self, card: Card) -> None:
        assert card.ends
        if card.record and card.record.state == gate.TESTING:
            card.record = Record(card.ends.value, "", self.now)
            card.since_pass = card.ends.sells
        card.ends = None

    # What happens to a card

    def happen(self) -> None:
        address = self.chance.choice(list(self.cards))
        card = self.cards[address]
        event = self.chance.choice(EVENTS)
        if event == "claim" and self.is_idle(card) and self.reason(address) is None:
            card.has_instance = True
        elif event == "release":
            card.has_instance = False
        elif event in ("break", "repair"):
            card.is_well = event == "repair"
        elif event == "driver" and card.record and not card.ends:
            card.changed, card.since_pass = "its driver changed from 1 to 2", False
        elif event == "wish":
            card.record, card.since_pass = None, False
        elif event == "quarantine":
            card.in_quarantine, card.since_pass = True, False
        elif event == "out":
            card.in_quarantine = False
        elif event == "kill":
            for other in self.cards.values():
                other.ends = None
            self.chosen = []
        elif event == "days":
            self.now += 2 * 86400


class HistoriesTest(unittest.TestCase):
    def test_what_is_offered(self) -> None:
        sold = held = passed = 0
        for seed in range(HISTORIES):
            chance = random.Random(seed)
            host = Host(chance)
            for _ in range(STEPS):
                if chance.random() < 0.7:
                    host.happen()
                free = {a for a, c in host.cards.items() if host.is_idle(c) and not host.reason(a)}
                running = {a: c.ends for a, c in host.cards.items() if c.ends}
                wanted = {a for a, c in host.cards.items() if c.record is None or c.in_quarantine}
                host.period()
                left = {a for a, c in host.cards.items() if host.is_idle(c) and not host.reason(a)}
                self.assertTrue(left or not free, f"{seed}: a test took the last free card")
                self.assertLessEqual(sum(bool(c.ends) for c in host.cards.values()), AT_ONCE)
                for address, card in host.cards.items():
                    reason = host.reason(address)
                    sold, held = sold + (reason is None), held + (reason is not None)
                    if not card.in_quarantine:
                        self.assertTrue(reason or card.since_pass, f"{seed}: {card}")
                    if reason:
                        self.assertRegex(reason, "; .*(tests it|begins again|nova-gpu test)")
                    ends = running.get(address)
                    if ends and ends.sells and not card.ends and address not in wanted:
                        passed += 1
                        self.assertIsNone(reason, f"{seed}: {card}")
        self.assertGreater(min(sold, held, passed), HISTORIES)

    def test_no_card_stays_out_that_is_well(self) -> None:
        """Nothing happens any more, and the operator has asked for a test of those that failed."""
        for seed in range(HISTORIES // 10):
            host = Host(random.Random(seed))
            for _ in range(STEPS):
                host.happen()
                host.period()
            for card in host.cards.values():
                card.is_well, card.has_instance, card.in_quarantine = True, False, False
                card.ends = Verdict.PASS if card.ends else None
                if card.record and card.record.state == Verdict.CRITICAL.value:
                    card.record = None
            since = dict.fromkeys(host.cards, host.now)
            for _ in range(60 * 8):
                host.period()
                for address in host.cards:
                    if host.reason(address) is None:
                        since[address] = host.now
            # A test gives no verdict now and then, and an hour later it is run again.
            self.assertLess(host.now - min(since.values()), 6 * 3600, f"{seed}: {host.cards}")
