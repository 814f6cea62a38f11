# SPDX-License-Identifier: Apache-2.0
"""All orders of fault, step, verdict, kill and boot: what the ladder and the gate offer together"""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import unittest
from collections.abc import Sequence

from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Repair, Source
from nova_gpu_cardlife.core import gate, ladder
from nova_gpu_cardlife.core.ladder import Ask, Limit, Record, State
from nova_gpu_cardlife.core.verdict import Verdict
from tests.fixtures.bases import fuzz

CARD = PciAddress.parse("0000:03:00.0")
LIMIT, MINUTE, DAY = Limit(3, 30), 60.0, 86400.0
# Some in the short run, and more in the long one
MORE = int(os.environ.get(fuzz.EXAMPLES, "0"))
HISTORIES, STEPS, DEPTH = MORE or 500, 20, 4 if MORE else 3
NOVAS = (Repair.RESET, Repair.DRAIN_AND_RESET, Repair.BUS_RESET)
# What happens between two periods. A fault is shown by the looks until it is healed or hides.
EVENTS = (
    *("reset", "bus-reset", "reboot", "service"),  # a fault that this step heals, and asks for it
    *("liar", "hides", "claim", "release", "kill", "boot", "back", "operator"),
)
SHORT = ("reset", "bus-reset", "hides", "claim", "kill", "boot", "operator", "")
ENDS = ("well", "fails", "lasts")
VERDICTS = (Verdict.PASS, Verdict.CRITICAL, Verdict.UNKNOWN)


@dataclasses.dataclass
class Host:
    """One card, and what nova-compute does with it as the extension does; ``heals`` is the truth.

    ``heals``: the step after which the card is well, ``None`` while it is. ``begun``: what this
    process has begun, which a kill forgets.
    """

    heals: Repair | None = None
    shown: Ask | None = None
    record: Record | None = None
    test: gate.Record | None = dataclasses.field(
        default_factory=lambda: gate.Record("PASS", "", 0.0)
    )
    has_instance: bool = False
    boot: int = 0
    now: float = 1e9
    begun: bool = False
    steps: list[float] = dataclasses.field(default_factory=list)  # begun by nova-compute
    since_pass: bool = True  # no fault since a test passed, or since the operator's word

    def reasons(self) -> list[str]:
        """Why new instances do not get the card"""
        own = [
            ladder.reason(CARD, self.record, self.test) if self.record else None,
            gate.reason(CARD, self.test, None, 60),
        ]
        return [str(reason) for reason in own if reason] + (
            [self.shown.fault] if self.shown else []
        )

    @property
    def is_free(self) -> bool:
        return not self.has_instance and not self.begun

    def happen(self, event: str) -> None:
        if event in ("reset", "bus-reset", "reboot", "service", "liar"):
            # A liar asks for less than what heals it.
            self.heals = Repair.SERVICE if event == "liar" else Repair(event)
            step = Repair.RESET if event == "liar" else self.heals
            self.shown, self.since_pass = Ask(step, f"a fault ({event})"), False
        elif event == "hides":
            self.shown = None
        elif event == "claim" and self.is_free and not self.reasons():
            self.has_instance = True
        elif event == "release":
            self.has_instance = False
        elif event == "kill":
            self.begun = False
        elif event == "boot":
            self.boot, self.begun, self.has_instance = self.boot + 1, False, False
            self.do(Repair.REBOOT)
        elif event == "back":
            self.now -= 3 * DAY
        elif event == "operator":
            self.test = self.record = None
            self.begun = self.begun and not self.is_free

    def do(self, step: Repair) -> None:
        order = list(Repair)
        if self.heals and order.index(step) >= order.index(self.heals):
            self.heals = self.shown = None

    def period(self, end: str, verdict: Verdict, is_fresh: bool = True) -> None:
        """How a step ends that goes on, and what a test that goes on says of a card that is well"""
        self.now += MINUTE
        self._test(verdict)
        before = self.record
        self.record = self._repaired(end, is_fresh)
        if self._is_to_test(self.record) and not self._is_to_test(before):
            self.test = None

    @staticmethod
    def _is_to_test(record: Record | None) -> bool:
        return record is not None and record.state is State.TESTING

    def _test(self, verdict: Verdict) -> None:
        """The gate's: an idle card without a test gets one, and it ends a period later."""
        is_kept = bool(self.shown) or (
            self.record is not None
            and (own := ladder.reason(CARD, self.record, self.test)) is not None
            and own.source is Source.REPAIR
        )
        if self.test and self.test.state == gate.TESTING:
            wrong = verdict is Verdict.PASS and self.heals
            state = Verdict.CRITICAL if wrong else verdict
            self.test = gate.Record(state.value, "", self.now)
            self.since_pass = self.since_pass or state.sells
        elif (
            self.is_free
            and not is_kept
            and gate.due(self.test, None, self.now, 0) is not gate.Due.NO
        ):
            self.test = gate.Record(gate.TESTING, "", self.now)

    def ask(self) -> Ask | None:
        if self.test and self.test.state == Verdict.CRITICAL.value:
            return max(
                (ask for ask in (self.shown, Ask(Repair.RESET, "its test failed")) if ask),
                key=lambda ask: list(Repair).index(ask.step),
            )
        return self.shown

    def _repaired(self, end: str, is_fresh: bool) -> Record | None:
        record, ask, boot = self.record, self.ask(), str(self.boot)
        new = ladder.look(record, ask, boot, self.now, LIMIT)
        if new is None or new.state in (State.OVER, State.REPLACE):
            return new
        if new.state is State.TESTING:
            if record is None or record.state is not State.TESTING:
                return new
            is_tests = self.test is not None and self.test.state == Verdict.CRITICAL.value
            return ladder.tested(
                new, self.test, ask, boot, self.now, LIMIT, is_fresh=is_fresh or is_tests
            )
        if new.state is State.DOING and self.begun:
            if end == "lasts":
                return new
            self.begun = False
            if end == "fails":
                return ladder.failed(new, Ask(new.step, "it failed"), boot, self.now, LIMIT)
            self.do(new.step)
            return ladder.done(new)
        if new.step not in NOVAS or self.has_instance:
            return ladder.wait(new, "it waits", "do something")
        if self.test and self.test.state == gate.TESTING:
            return ladder.wait(new, "it is tested", "wait")
        if record is None or record.state is State.OVER:
            return new
        begun = ladder.begin(new, self.now, LIMIT)
        if new.state is not State.DOING:
            self.steps.append(self.now)
        self.begun = True
        return begun


class LadderTest(unittest.TestCase):
    def check(self, host: Host, story: Sequence[object]) -> bool:
        """What holds after each period; whether the card is offered"""
        reasons = host.reasons()
        if not reasons:
            self.assertTrue(host.since_pass, story)
            self.assertTrue(host.test and host.test.sells, story)
            pending = host.record and host.record.state not in (State.OVER, State.TESTING)
            self.assertFalse(pending, story)
            self.assertFalse(host.begun, story)
        elif not host.shown:
            for reason in reasons:
                self.assertRegex(
                    reason, r"; .*(nova-gpu test|tests it|do something|wait|begins again)", story
                )
        if host.test and host.test.sells and not host.shown and host.since_pass:
            over = (None, State.OVER, State.TESTING)
            if (host.record.state if host.record else None) in over:
                self.assertEqual([], reasons, story)  # what passes is offered in that period
        return not reasons

    def test_all_short_stories(self) -> None:
        """Of one event in each period, and all ways in which the steps and the tests end"""
        ways = (*itertools.product(("well", "fails"), VERDICTS), ("lasts", Verdict.PASS))
        for end, verdict in ways:
            self.walk(Host(), (end, verdict), ())
            host = Host()  # the step of a reset has begun
            host.happen("reset")
            for _ in range(2):
                host.period("lasts", Verdict.PASS)
            self.assertEqual(State.DOING, host.record and host.record.state)
            self.walk(host, (end, verdict), ())

    def walk(self, before: Host, way: tuple[str, Verdict], events: tuple[str, ...]) -> None:
        for event in SHORT if len(events) < DEPTH else ():
            host = dataclasses.replace(before, steps=list(before.steps))
            host.happen(event)
            host.period(*way)
            self.check(host, (way, *events, event))
            self.walk(host, way, (*events, event))

    def test_random_histories(self) -> None:
        sold = over = replaced = 0
        for seed in range(HISTORIES):
            chance, host = random.Random(seed), Host()
            for _ in range(STEPS):
                if chance.random() < 0.5:
                    host.happen(chance.choice(EVENTS))
                end = chance.choices(ENDS, (5, 1, 2))[0]
                verdict = chance.choices(VERDICTS, (6, 1, 1))[0]
                host.period(end, verdict, chance.random() < 0.3)
                sold += self.check(host, (seed, host))
                over += bool(host.record and host.record.state is State.OVER)
                replaced += bool(host.record and host.record.state is State.REPLACE)
            if seed % 10 == 0:
                self.ends(host, seed)
        self.assertGreater(min(sold, over, replaced), HISTORIES / 100)

    def ends(self, host: Host, seed: int) -> None:
        """Nothing happens any more; then a person does what the reasons say."""
        host.has_instance = False
        for _ in range(20):
            host.period("well", Verdict.PASS)
        if not host.reasons():
            self.assertIsNone(host.heals, seed) if host.since_pass else None
            return
        for event in ("boot", "operator"):
            host.happen(event)
            host.heals = host.shown = None
        for _ in range(3):
            host.period("well", Verdict.PASS)
        self.assertEqual([], host.reasons(), (seed, host))

    def test_it_does_not_flap(self) -> None:
        """A card that breaks as soon as it is offered takes three steps in thirty days."""
        host = Host()
        for minute in range(40 * 24 * 60 // 10):
            host.now += 9 * MINUTE
            if not host.reasons():
                host.happen("reset")
            host.period("well", Verdict.PASS)
            if minute == 30 * 24 * 6:
                self.assertEqual(3, len(host.steps))
        self.assertEqual(State.REPLACE, host.record and host.record.state)
        self.assertEqual(3, len(host.steps))


class OrderTest(unittest.TestCase):
    def test_the_next_step(self) -> None:
        for step, ask, expected in (
            (Repair.RESET, Repair.RESET, Repair.BUS_RESET),
            (Repair.DRAIN_AND_RESET, Repair.RESET, Repair.BUS_RESET),
            (Repair.BUS_RESET, Repair.RESET, Repair.REBOOT),
            (Repair.REBOOT, Repair.RESET, Repair.SERVICE),
            (Repair.RESET, Repair.REBOOT, Repair.REBOOT),
            (Repair.RESET, Repair.SERVICE, Repair.SERVICE),
        ):
            record = Record(State.TESTING, step, "", "1")
            failed = ladder.failed(record, Ask(ask, "hot"), "1", 0.0, LIMIT)
            self.assertEqual((State.WAITING, expected), (failed.state, failed.step))

    def test_tries(self) -> None:
        for tries, expected in (
            ((), State.WAITING),
            ((5 * DAY,) * 2, State.WAITING),
            ((5 * DAY,) * 3, State.REPLACE),
            ((0.0, 5 * DAY, 5 * DAY), State.WAITING),  # the first is too old
            ((90 * DAY,) * 3, State.REPLACE),  # a clock was set back
        ):
            record = Record(State.OVER, Repair.RESET, "", "1", tries)
            new = ladder.look(record, Ask(Repair.RESET, "hot"), "1", 31 * DAY, LIMIT)
            self.assertEqual(expected, new and new.state, tries)
