# SPDX-License-Identifier: Apache-2.0
"""The ladder: the step of a repair that a faulty card waits for, until a test after it passes.

A fault asks for a step. Until a test has passed after that step, new instances do not get the
card, even if the fault is no longer reported. If the fault stays, or the test fails, the next step
is due. A card that needs a step after too many others is to be replaced. A clock that was set back
may have a card replaced earlier, and offers none earlier.
"""

from __future__ import annotations

import dataclasses
import enum

from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Repair, Source, Unavailable
from nova_gpu_cardlife.core import gate

_DAY_S = 86400.0
_STEPS = tuple(Repair)
# The step after one that has not helped
_NEXT = {
    Repair.RESET: Repair.BUS_RESET,
    Repair.DRAIN_AND_RESET: Repair.BUS_RESET,
    Repair.BUS_RESET: Repair.REBOOT,
    Repair.REBOOT: Repair.SERVICE,
    Repair.SERVICE: Repair.SERVICE,
}
_WORDS = {
    Repair.RESET: "a reset",
    Repair.DRAIN_AND_RESET: "a reset while the cards that are joined with it are free",
    Repair.BUS_RESET: "a reset of its bus",
    Repair.REBOOT: "a boot of the host",
    Repair.SERVICE: "service",
}


class State(enum.Enum):
    """The state of the present repair; ``OVER`` if none is pending.

    ``WAITING``: its step has not begun. ``DOING``: it has begun. ``TESTING``: it has ended, and the
    card waits for its test. ``REPLACE``: the card needed too many steps.
    """

    WAITING = "waiting"
    DOING = "doing"
    TESTING = "testing"
    REPLACE = "replace"
    OVER = "over"


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A card is to be replaced when it needs another step after ``tries`` in ``days``."""

    tries: int
    days: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """What a fault of a card asks for, and its text."""

    step: Repair
    fault: str


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The repair of a card.

    ``boot_id``: of the host when the step became due. ``tries``: when steps began, since 1970, with
    boots of the host. ``waits`` and ``remedy``: why the step has not begun, and what to do.
    """

    state: State
    step: Repair
    fault: str
    boot_id: str
    tries: tuple[float, ...] = ()
    waits: str = ""
    remedy: str = ""


def look(
    record: Record | None, ask: Ask | None, boot_id: str | None, now: float, limit: Limit
) -> Record | None:
    """Return the repair of a card after a look at it.

    The caller removes the record of the card's test before it writes a record that is ``TESTING``.

    :param ask: what the gravest fault of the card asks for, ``None`` without one
    :param boot_id: that of the host, ``None`` if it cannot be read
    """
    if record is None or record.state is State.OVER:
        if ask is None or boot_id is None:
            return record
        return _due(ask, boot_id, record.tries if record else (), now, limit)
    if record.state is State.REPLACE:
        return record
    is_booted = boot_id not in (None, record.boot_id)
    if is_booted and record.state is not State.TESTING and record.step is not Repair.SERVICE:
        # A boot does what all steps before it do.
        return done(_tried(dataclasses.replace(record, step=Repair.REBOOT), now, limit))
    if ask and record.state is State.WAITING and _is_above(ask.step, record.step):
        return dataclasses.replace(record, step=ask.step, fault=ask.fault, waits="", remedy="")
    return record


def _due(ask: Ask, boot_id: str, tries: tuple[float, ...], now: float, limit: Limit) -> Record:
    """Return the repair of a card whose next step is *ask*, unless it needed too many before."""
    # Those of the future count, too: a clock was set back.
    recent = tuple(when for when in tries if now - when < limit.days * _DAY_S)
    is_left = ask.step is Repair.SERVICE or len(recent) < limit.tries
    state = State.WAITING if is_left else State.REPLACE
    return Record(state, ask.step, ask.fault, boot_id, recent)


def _tried(record: Record, now: float, limit: Limit) -> Record:
    tries = (*record.tries, now)[-limit.tries :]
    return dataclasses.replace(record, tries=tries)


def _is_above(one: Repair, other: Repair) -> bool:
    return _STEPS.index(one) > _STEPS.index(other)


def begin(record: Record, now: float, limit: Limit) -> Record:
    """Return *record* when its step begins, or begins again after nova-compute has ended."""
    if record.state is not State.DOING:
        record = _tried(record, now, limit)
    return dataclasses.replace(record, state=State.DOING, waits="", remedy="")


def wait(record: Record, waits: str, remedy: str) -> Record:
    """Return *record* with the reason why its step cannot begin, or begin again."""
    return dataclasses.replace(record, waits=waits, remedy=remedy)


def done(record: Record) -> Record:
    """Return *record* when its step has ended well; a test must pass now."""
    return dataclasses.replace(record, state=State.TESTING, waits="", remedy="")


def failed(record: Record, ask: Ask, boot_id: str, now: float, limit: Limit) -> Record:
    """Return *record* when its step has failed, or has not helped: the next step is due.

    :param ask: the fault that is there now, which may ask for more than the next step
    """
    step = _NEXT[record.step]
    if _is_above(ask.step, step):
        step = ask.step
    return _due(Ask(step, ask.fault), boot_id, record.tries, now, limit)


def tested(
    record: Record,
    test: gate.Record | None,
    ask: Ask | None,
    boot_id: str,
    now: float,
    limit: Limit,
    *,
    is_fresh: bool,
) -> Record:
    """Return *record*, which is ``TESTING``, after a look at the test that began after its step.

    :param test: ``None`` until the test has begun
    :param ask: the fault that is still there, or there again
    :param is_fresh: whether *ask* was found after the step, and not before
    """
    if ask and is_fresh:
        return failed(record, ask, boot_id, now, limit)
    if ask or test is None or not test.is_passed:
        return record
    return dataclasses.replace(record, state=State.OVER)


def reason(card: PciAddress, record: Record, test: gate.Record | None) -> Unavailable | None:
    """Return why new instances do not get the card, ``None`` if no repair of it is pending.

    :param test: the record of the card's test, ``None`` without one
    """
    if record.state is State.OVER:
        return None
    if record.state is State.TESTING:
        if test and test.is_passed:
            return None
        text = f"after {_WORDS[record.step]} it must pass its test: {record.fault}"
        return Unavailable(text, "nova-compute tests it while no instance has it", Source.GATE)
    if record.state is State.REPLACE:
        text = f"it is to be replaced, after {len(record.tries)} repairs: {record.fault}"
        return Unavailable(text, by_hand(card), Source.REPAIR)
    if record.state is State.DOING:
        text, remedy = "it has begun", "if nova-compute ended meanwhile, it begins again"
    else:
        text, remedy = "it begins in the next period", by_hand(card)
    return Unavailable(
        f"{record.fault}; it needs {_WORDS[record.step]}: {record.waits or text}",
        record.remedy or remedy,
        Source.REPAIR,
    )


def by_hand(card: PciAddress) -> str:
    """Return the remedy that ends every repair."""
    return f"repair or replace it, then run nova-gpu test {card}"
