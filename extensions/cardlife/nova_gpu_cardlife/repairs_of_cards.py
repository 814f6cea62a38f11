# SPDX-License-Identifier: Apache-2.0
"""The repairs of a host's cards: nova-compute goes on with them in its periods."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from oslo_log import log as logging

import nova_gpu.privsep
import nova_gpu_cardlife.privsep
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import boundary, exception, unavailability
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.unavailability import Reasons, Repair, Source, Unavailable
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import identity
from nova_gpu.host.pci.identity import Identity
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, proofs, quarantine
from nova_gpu.virt import threads
from nova_gpu_cardlife import tests_of_cards
from nova_gpu_cardlife.core import gate, ladder
from nova_gpu_cardlife.core.ladder import Ask, Limit, Record, State
from nova_gpu_cardlife.host import records, repair_records
from nova_gpu_cardlife.options import BUS_RESET, RESET

if TYPE_CHECKING:
    import futurist

    from nova_gpu.virt.card_gates import HostCards
    from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

_OPTIONS = {Repair.RESET: RESET, Repair.DRAIN_AND_RESET: RESET, Repair.BUS_RESET: BUS_RESET}
_WIDE = (Repair.DRAIN_AND_RESET, Repair.BUS_RESET)
# What does not make a step fail: it is tried again
_LATER = exception.DeviceUnavailable, exception.BindingFailed, exception.NotCleanedYet
# Sources whose reasons cannot be older than the step: it ended what they said before.
_ENDED_BY_STEP = (Source.TEST, Source.QUARANTINE)


def folder() -> pathlib.Path:
    return pathlib.Path(NOVAS.state_path, "gpu-repairs")


def of_host(roots: Roots, identities: quarantine.Identities | None) -> Repairs:
    """Return the gate of a host whose cards are repaired.

    :param identities: read the identifiers of cards; ``None`` in commands
    :raises InvalidOption: in nova-compute, if cards are not tested
    """
    if identities and not CONF.gpu.card_test:
        reason = "a card is offered after a repair only if it passes a test, and none is set"
        value = ", ".join(CONF.gpu.card_repair)
        raise exception.InvalidOption("card_repair", value, reason, "set [gpu]card_test, too")
    return Repairs(roots, identities)


class Repairs:
    """The cards of a host that wait for a step of a repair, or for the test after one."""

    def __init__(self, roots: Roots, identities: quarantine.Identities | None) -> None:
        self._roots, self._identities = roots, identities
        self._folder = folder()
        # Repairs that could not be written yet
        self._unwritten: dict[PciAddress, Record] = {}
        # Steps that this process has begun, each with its call where a call does it, and not the
        # next cleaning
        self._begun: dict[PciAddress, futurist.Future[None] | None] = {}
        # When this process first saw that the card waits for its test, by time.monotonic()
        self._testing: dict[PciAddress, float] = {}

    def load(self) -> None:
        nova_gpu_cardlife.privsep.steps.load()

    def kept_back(self, cards: Collection[GPU]) -> Mapping[PciAddress, Reasons]:
        # In a command: the folder may be in one that is closed to the user.
        if not self._identities and not os.path.exists(self._folder):
            return {}
        reasons: dict[PciAddress, Reasons] = {}
        for card, record in self._records(cards).items():
            if isinstance(record, Unavailable):
                reasons[card.address] = (record,)
            elif record and (own := ladder.reason(card.address, record, _test(card.address))):
                reasons[card.address] = (own,)
        return reasons

    def _records(self, cards: Collection[GPU]) -> dict[GPU, Record | Unavailable | None]:
        """Return the repair of each card, or why it cannot be read."""
        try:
            there = set(files.cards(self._folder))
        except FileNotFoundError:
            there = set()
        except OSError as error:
            return {card: _unread(card, error) for card in cards}
        known = self._own([card for card in cards if card.address in there])
        repairs: dict[GPU, Record | Unavailable | None] = {}
        for card in cards:
            try:
                record = None
                if card.address in there:
                    record = repair_records.read(self._folder, card, known[card.address])
                repairs[card] = self._unwritten.get(card.address, record)
            except (OSError, ValueError) as error:
                repairs[card] = _unread(card, error)
        return repairs

    def _own(self, cards: Collection[GPU]) -> Mapping[PciAddress, Identity]:
        if self._identities and cards:
            return self._identities(cards)
        return {card.address: identity.read(card, self._roots) for card in cards}

    def step(self, host: HostCards, ledger: Ledger) -> Mapping[PciAddress, Reasons]:
        """Go on with the repair of each card; return the reasons of those that have changed."""
        try:
            boot_id = self._roots.boot_id()
        except OSError as error:
            LOG.warning("No repair of a GPU goes on, because the boot id is unknown: %s", error)
            return {}
        further: dict[PciAddress, Reasons] = {}
        known = self._records(tuple(host.cards.values()))
        doing = {
            card.address
            for card, record in known.items()
            if isinstance(record, Record) and record.state is State.DOING
        }
        for address, call in tuple(self._begun.items()):
            if address not in doing and (call is None or call.done()):
                del self._begun[address]  # nova-gpu test has ended it, or the card is gone
        for card, record in known.items():
            if isinstance(record, Unavailable):
                continue  # kept back as long as it cannot be read
            try:
                new = self._next(host, ledger, card, record, boot_id)
                if new is None or (new == record and card.address not in self._unwritten):
                    continue
                self._write(card, new)
            except OSError as error:
                LOG.error("The repair of GPU %s does not go on: %s", card.address, error)
                continue
            if own := ladder.reason(card.address, new, _test(card.address)):
                further[card.address] = (own,)
                if record is None or new.state is not record.state:
                    LOG.warning("GPU %s: %s", card.address, own)
        return further

    def _next(
        self, host: HostCards, ledger: Ledger, card: GPU, record: Record | None, boot_id: str
    ) -> Record | None:
        """Return the repair of *card* after this period, and do what follows from it.

        :raises OSError: if a file cannot be changed; then the next period tries the same again
        """
        address, now, limit = card.address, time.time(), _limit()
        own = host.reasons.get(address, ())
        ask = _ask(own)
        new = ladder.look(record, ask, boot_id, now, limit)
        if new is None or new.state in (State.OVER, State.REPLACE):
            return new
        if new.state is State.TESTING:
            test = _test(address)
            # UNTESTED: the records of all tests were removed, and tests switched on again.
            is_new = record is None or record.state is not State.TESTING
            if is_new or (test and test.state == gate.UNTESTED):
                return self._to_test(host, address, new)
            since = self._testing.setdefault(address, time.monotonic())
            is_fresh = time.monotonic() - since > 2 * CONF.gpu.health_interval or any(
                reason.asks and reason.source in _ENDED_BY_STEP for reason in own
            )
            return ladder.tested(new, test, ask, boot_id, now, limit, is_fresh=is_fresh)
        if new.state is State.DOING and address in self._begun:
            return self._go_on(host, ledger, card, new, boot_id)
        if blocked := self._blocked(host, card, new.step):
            return ladder.wait(new, *blocked)
        if record is None or record.state is State.OVER:
            return new  # first it is on disk, and the card is reserved in Placement
        begun = ladder.begin(new, now, limit)
        self._save(card, begun)  # before anything is done
        self._begin(host, ledger, card, begun.step)
        return begun

    def _blocked(self, host: HostCards, card: GPU, step: Repair) -> tuple[str, str] | None:
        """Return why the step of *card* cannot begin now, and what to do; ``None`` if it can."""
        address, own = card.address, host.reasons.get(card.address, ())
        drain = f"openstack gpu drain {CONF.host}, where the extension fleet is there"
        if step is Repair.SERVICE:
            return "a person has to do that", ladder.by_hand(address)
        if step is Repair.REBOOT:
            text = "nova-compute does not boot a host"
            return text, f"move the instances off the host ({drain}), then boot it"
        by_hand = f"do that, or boot the host; if it is done by hand, run nova-gpu test {address}"
        if _OPTIONS[step] not in CONF.gpu.card_repair:
            return f"[gpu]card_repair does not have {_OPTIONS[step]}", by_hand
        if address in host.divided:
            return "nova-compute resets no card that is given in parts", by_hand
        if _is_in_containers() and (step is Repair.BUS_RESET or card.driver != nvml.DRIVER):
            return "nova-compute cannot do that to a card that containers get", by_hand
        if any(item.source is Source.QUARANTINE and not item.asks for item in own):
            return "it is in quarantine", f"run nova-gpu quarantine release {address}"
        if reason := unavailability.for_all(own):
            return f"no guest can use it now ({reason.reason})", reason.remedy or by_hand
        others = host.beside(address) if step in _WIDE else frozenset()
        if taken := sorted((others | {address}) & host.held):
            names = ", ".join(map(str, taken))
            text = f"instances have {names}, or it is being cleaned or tested"
            return text, f"move or stop the instances that have {names} ({drain})"
        if others & self._begun.keys() or any(self._begun.values()):
            return "a step of another card goes on", "wait until it ends"
        return None

    def _begin(self, host: HostCards, ledger: Ledger, card: GPU, step: Repair) -> None:
        self._release(host, card.address)
        others = host.beside(card.address) & host.cards.keys() if step in _WIDE else set()
        if step in _WIDE or _is_in_containers():

            def call(card: GPU) -> None:
                with contextlib.ExitStack() as stack:
                    # None of them gets a guest meanwhile.
                    for address in sorted({card.address, *others}):
                        stack.enter_context(ledger.clean(address))
                    _do(card, step)

            self._begun[card.address] = threads.begin(call, card)
        else:
            self._clean(ledger, card.address)
            self._begun[card.address] = None
        LOG.info("GPU %s: began %s", card.address, step.value)

    def _clean(self, ledger: Ledger, address: PciAddress) -> None:
        """Let nova-compute clean the card, which resets it, before anything else gets it."""
        # First on disk: a service that ends now leaves a card that the next one cleans.
        proofs.revoke(pathlib.Path(NOVAS.state_path, "gpu-clean"), [address])
        ledger.was_used([address])

    def _go_on(
        self, host: HostCards, ledger: Ledger, card: GPU, record: Record, boot_id: str
    ) -> Record:
        """Return the repair of a card whose step this process has begun."""
        address, call = card.address, self._begun[card.address]
        fault = None
        if call is not None:
            if not call.done():
                return record
            try:
                with boundary.crossed(*_LATER, exception.NotClean):
                    call.result()
            except _LATER as error:
                del self._begun[address]  # a guest or a program of the host was faster
                return ladder.wait(record, str(error), "nova-compute tries it again")
            except exception.NotClean as error:
                fault = error.reason
            except boundary.Failure as error:
                fault = str(error)
            if fault is None and not _is_in_containers():
                self._clean(ledger, address)
                self._begun[address] = None
                return record
        elif own := _failed(host.reasons.get(address, ())):
            fault = own.reason
        elif address in host.held | host.dirty:
            return record  # it is being cleaned, or will be
        if fault is None:
            return self._to_test(host, address, ladder.done(record))
        del self._begun[address]
        ask = Ask(record.step, f"{record.step.value} failed: {fault}")
        return ladder.failed(record, ask, boot_id, time.time(), _limit())

    def _to_test(self, host: HostCards, address: PciAddress, record: Record) -> Record:
        """Make a test of the card due before *record* says that one is awaited."""
        records.remove(tests_of_cards.folder(), address)
        self._release(host, address)
        return record

    def _release(self, host: HostCards, address: PciAddress) -> None:
        """End the card's quarantine if a fault has put it there that asks for a repair."""
        place = pathlib.Path(NOVAS.state_path, "gpu-quarantine")
        own = host.reasons.get(address, ())
        if any(reason.source is Source.QUARANTINE and reason.asks for reason in own):
            entry = quarantine.load(place).get(address)
            if entry and entry.asks:
                quarantine.release(place, address)

    def _write(self, card: GPU, record: Record) -> None:
        """Write the repair of *card*, or keep it in memory if that only keeps the card back."""
        try:
            self._save(card, record)
        except OSError:
            if record.state in (State.WAITING, State.REPLACE):
                self._unwritten[card.address] = record
            raise

    def _save(self, card: GPU, record: Record) -> None:
        repair_records.write(self._folder, card, self._own([card])[card.address], record)
        self._unwritten.pop(card.address, None)
        if record.state is not State.DOING:
            self._begun.pop(card.address, None)
        if record.state is not State.TESTING:
            self._testing.pop(card.address, None)


def _do(card: GPU, step: Repair) -> None:
    """Do the step of *card* for which its cleaning is not enough."""
    address = str(card.address)
    if _is_in_containers():
        nova_gpu_cardlife.privsep.steps.reset_by_driver(address)
        return
    nova_gpu.privsep.vfio.give_to_guests(address)
    if step is Repair.BUS_RESET:
        nova_gpu.privsep.cleaning.reset_bus(address)
    else:
        nova_gpu.privsep.cleaning.reset(address)


def _is_in_containers() -> bool:
    return DeliveryMode.of_whole_cards(NOVAS.libvirt.virt_type) is DeliveryMode.LXC


def _limit() -> Limit:
    return Limit(CONF.gpu.card_repair_tries, CONF.gpu.card_repair_days)


def _test(address: PciAddress) -> gate.Record | None:
    """Return the record of the card's test, ``None`` if it has none that can be read."""
    try:
        tested = records.read(tests_of_cards.folder(), address)
    except (OSError, ValueError):
        return None
    return tested.record if tested else None


def _unread(card: GPU, error: Exception) -> Unavailable:
    remedy = f"make it readable for nova-compute, or run nova-gpu test {card.address}"
    return Unavailable(f"the record of its repair cannot be read: {error}", remedy, Source.REPAIR)


def _ask(own: Reasons) -> Ask | None:
    """Return what the gravest of these reasons asks for."""
    for step in reversed(Repair):
        for reason in own:
            if reason.asks is step:
                return Ask(step, reason.reason)
    return None


def _failed(own: Reasons) -> Unavailable | None:
    """Return the reason by which a card that is to be cleaned will not be."""
    for reason in own:
        if reason.source is Source.QUARANTINE:
            return reason
    return unavailability.for_all(own)
