# SPDX-License-Identifier: Apache-2.0
"""The tests of a host's cards: nova-compute begins them in its periods, and commands read them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from oslo_log import log as logging

import nova_gpu_cardlife.privsep
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import boundary, exception, printable
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Repair, Source, Unavailable
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import quarantine
from nova_gpu_cardlife import options
from nova_gpu_cardlife.core import gate
from nova_gpu_cardlife.core.verdict import Outcome, Verdict
from nova_gpu_cardlife.host import bus_test, records
from nova_gpu_cardlife.host.records import Tested

if TYPE_CHECKING:
    from nova_gpu.virt.card_gates import HostCards
    from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

# How many lines of a test's output are logged at most, the last ones
_LINES = 100
# And how much of each
_LINE = printable.MOST_OF_A_LINE


def folder() -> pathlib.Path:
    return pathlib.Path(NOVAS.state_path, "gpu-tests")


def of_host(roots: Roots, identities: quarantine.Identities | None) -> TestedCards:
    """Return the gate of a host whose cards are tested.

    :param identities: read the identifiers of cards; ``None`` in commands
    :raises InvalidOption: in nova-compute, if ``[gpu]card_test`` is invalid
    :raises ValueError: in nova-compute, if another option of the tests is
    """
    if identities:
        for option in options.OPTS:
            CONF.gpu[option.name]  # a wrong number ends the start, and not each period
        nova_gpu_cardlife.privsep.tests.command()
    return TestedCards(roots, identities)


class TestedCards:
    """The cards of a host that are offered once they passed a test."""

    def __init__(self, roots: Roots, identities: quarantine.Identities | None) -> None:
        self._roots, self._identities = roots, identities
        self._folder = folder()
        self._running: dict[PciAddress, contextlib.ExitStack] = {}
        self._chosen: frozenset[PciAddress] = frozenset()
        self._is_on = False
        self._cards: dict[PciAddress, gate.Idle] = {}

    def load(self) -> None:
        nova_gpu_cardlife.privsep.tests.load()

    def kept_back(self, cards: Collection[GPU]) -> Mapping[PciAddress, Reasons]:
        if self._identities:
            self._collect()
        if self._is_on:  # without the folder no card has a record
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o755, exist_ok=True)
        elif not self._identities:
            if not os.path.exists(self._folder):  # or it is in a folder that is closed to the user
                return {}
        elif not self._folder.exists() and not self._switch_on(cards):
            return {}
        self._is_on = self._identities is not None
        seen = quarantine.see(cards, self._roots, self._identities)
        reasons: dict[PciAddress, Reasons] = {}
        states: dict[PciAddress, gate.Idle] = {}
        for card in cards:
            unread = None
            try:
                state = self._state(card, seen.get(card.address))
            except (OSError, ValueError) as error:
                remedy = f"make it readable for nova-compute, or run nova-gpu test {card.address}"
                text = f"the record of its test cannot be read: {error}"
                unread, state = Unavailable(text, remedy, Source.GATE), None
            if state:
                states[card.address] = state
                timeout_s = CONF.gpu.card_test_timeout
                unread = gate.reason(card.address, state.record, state.changed, timeout_s)
                if unread is None and card.address in self._chosen:
                    unread = gate.CHOSEN
            if unread:
                reasons[card.address] = (unread,)
        self._cards = states
        return reasons

    def _state(self, card: GPU, seen: quarantine.Seen | None) -> gate.Idle:
        tested = records.read(self._folder, card.address)
        if tested is None:
            return gate.Idle(card.product.key, None)
        changed = records.changed(tested, card, seen, records.versions(card, self._roots))
        return gate.Idle(card.product.key, tested.record, changed)

    def _switch_on(self, cards: Collection[GPU]) -> bool:
        """Record that the host's cards were offered before there were tests; all or none.

        Return whether that could be written; if not, it is tried again in the next period.
        """
        draft = self._folder.with_suffix(".new")
        try:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(draft)
            draft.mkdir(mode=0o755)
            for card in cards:
                self._write(draft, card, gate.Record(gate.UNTESTED, "", time.time()))
            os.rename(draft, self._folder)
        except OSError as error:
            LOG.error("Cannot record which GPUs this host has; no GPU is tested yet: %s", error)
            return False
        return True

    def _write(self, at: pathlib.Path, card: GPU, record: gate.Record) -> None:
        seen = quarantine.see([card], self._roots, self._identities).get(card.address)
        if seen is None:
            raise OSError("the identity of the card cannot be read")
        known = records.versions(card, self._roots)
        records.write(at, card.address, Tested(record, card.product.key, known, seen))

    def step(self, host: HostCards, ledger: Ledger) -> Mapping[PciAddress, Reasons]:
        """Begin the tests that the last call has announced; return the cards to be tested next."""
        with contextlib.suppress(OSError):  # the next period tries it again
            for address, own in host.reasons.items():
                if any(reason.source is Source.QUARANTINE for reason in own):
                    records.remove(self._folder, address)
        here = {card.address: card for card in host.idle() if card.address in self._cards}
        before, self._chosen = self._chosen, frozenset()
        for address in sorted(before & here.keys()):
            if self._is_due(address) and len(self._running) < CONF.gpu.card_test_at_once:
                self._begin(here[address], ledger)
        room = CONF.gpu.card_test_at_once - len(self._running)
        waiting = {a: self._cards[a] for a in here if a not in before and a not in self._running}
        self._chosen = frozenset(self._choose(waiting, room))
        return {a: (gate.CHOSEN,) for a in self._chosen if self._cards[a].is_offered}

    def _choose(self, cards: Mapping[PciAddress, gate.Idle], room: int) -> list[PciAddress]:
        days, leave_free = CONF.gpu.card_test_days, CONF.gpu.card_test_leave_free
        is_unsure = any(card.is_unsure for card in self._cards.values())  # also one that is broken
        return gate.choose(
            cards, room, time.time(), days=days, leave_free=leave_free, is_unsure=is_unsure
        )

    def _is_due(self, address: PciAddress) -> bool:
        card = self._cards[address]
        days = CONF.gpu.card_test_days
        return gate.due(card.record, card.changed, time.time(), days) is not gate.Due.NO

    def _begin(self, card: GPU, ledger: Ledger) -> None:
        """Begin the test of *card*, which new instances do not get since an earlier period."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(ledger.clean(card.address))
                former = records.read(self._folder, card.address)
                self._write(self._folder, card, gate.Record(gate.TESTING, "", time.time()))
            except exception.DeviceUnavailable:
                return  # an instance was faster
            except (OSError, ValueError) as error:
                LOG.error("Cannot write the record of the test of GPU %s: %s", card.address, error)
                return
            LOG.info("GPU %s is being tested", card.address)
            outcome = bus_test.run(card, self._roots)
            if outcome.verdict.sells and self._has_program(card):
                try:
                    with boundary.crossed(exception.DeviceUnavailable):
                        nova_gpu_cardlife.privsep.tests.begin(str(card.address))
                    self._running[card.address] = stack.pop_all()
                    return
                except exception.DeviceUnavailable as error:
                    LOG.warning("%s. The next period tries it again.", error)
                    self._restore(card.address, former)
                    return
                except boundary.Failure as error:
                    outcome = Outcome(Verdict.UNKNOWN, f"its test did not begin: {error}")
            self._end(card.address, outcome)

    def _restore(self, address: PciAddress, former: Tested | None) -> None:
        """Write the record from before a test that did not begin."""
        try:
            if former:
                records.write(self._folder, address, former)
            else:
                records.remove(self._folder, address)
        except OSError as error:
            LOG.error("Cannot write the record of the test of GPU %s: %s", address, error)

    def _has_program(self, card: GPU) -> bool:
        first = CONF.gpu.card_test[0]
        if first == options.DCGMI:
            return card.driver == nvml.DRIVER
        return bool(first != options.BUS)

    def _collect(self) -> None:
        """Record the verdicts of the tests that have ended."""
        for address in tuple(self._running):
            try:
                with boundary.crossed():
                    answer = nova_gpu_cardlife.privsep.tests.outcome(str(address))
            except boundary.Failure as error:
                answer = Verdict.UNKNOWN.value, f"its end cannot be read: {error}", "", None
            if answer is None:
                continue
            name, text, output, asks = answer
            for line in output.splitlines()[-_LINES:]:
                LOG.info("Test of GPU %s: %s", address, printable.printable(line, _LINE))
            self._end(address, Outcome(Verdict(name), text, Repair(asks) if asks else None))
            self._running.pop(address).close()

    def _end(self, address: PciAddress, outcome: Outcome) -> None:
        """Write the verdict, unless ``nova-gpu test`` has asked for another test since."""
        LOG.info("GPU %s: its test ended with %s %s", address, outcome.verdict.value, outcome.text)
        try:
            tested = records.read(self._folder, address)
            if tested and tested.record.state == gate.TESTING:
                asks = outcome.asks.value if outcome.asks else None
                record = gate.Record(outcome.verdict.value, outcome.text, time.time(), asks)
                ended = Tested(record, tested.product, tested.versions, tested.seen)
                records.write(self._folder, address, ended)
                if address in self._cards:
                    self._cards[address] = dataclasses.replace(self._cards[address], record=record)
        except (OSError, ValueError) as error:
            LOG.error("Cannot write the verdict on GPU %s, will test it again: %s", address, error)
