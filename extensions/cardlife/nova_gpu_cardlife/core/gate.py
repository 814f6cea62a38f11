# SPDX-License-Identifier: Apache-2.0
"""The gate: whether a card is kept from new instances by its last test, and when it needs another.

A card without a record is new, or its test was asked for. A record is ``UNTESTED`` for the cards
that were offered when tests were switched on, ``TESTING`` from the begin of a test to its end, and
then the verdict. A service that ends during a test leaves ``TESTING``: the card stays kept back and
is tested again.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Repair, Source, Unavailable
from nova_gpu_cardlife.core.verdict import Verdict

UNTESTED, TESTING = "UNTESTED", "TESTING"
_STATES = (UNTESTED, TESTING, *(verdict.value for verdict in Verdict))

# How long after a test without a verdict the next one begins
RETRY_S = 3600.0
_DAY_S = 86400.0
# After every time that a clock says, and before the last one that datetime knows
_NEVER = 1e11
_WAIT = "nova-compute tests it while no instance has it ([gpu]card_test)"
_NEW = Unavailable("it has not passed a test on this host", _WAIT, Source.GATE)
CHOSEN = Unavailable("its test begins in the next period", _WAIT, Source.GATE)


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The last test of a card. ``since`` is the time of its begin or its verdict, since 1970.

    ``asks`` is that of an :class:`~nova_gpu_cardlife.core.verdict.Outcome`, by its value.
    """

    state: str
    text: str
    since: float
    asks: str | None = None

    def __post_init__(self) -> None:
        if self.state not in _STATES or not isinstance(self.text, str):
            raise ValueError(f"no state of a test is called {self.state}")
        if not 0 <= self.since < _NEVER:
            raise ValueError(f"no test was at {self.since}")
        if self.asks is not None:
            Repair(self.asks)

    @property
    def sells(self) -> bool:
        """Whether new instances may get the card, unless it has changed since."""
        return self.state == UNTESTED or self.is_passed

    @property
    def is_passed(self) -> bool:
        return self.state not in (UNTESTED, TESTING) and Verdict(self.state).sells


def reason(
    card: PciAddress, record: Record | None, changed: str | None, timeout_s: int
) -> Unavailable | None:
    """Return why new instances do not get the card, ``None`` if they may.

    :param changed: what has changed since the test, ``None`` if nothing has
    """
    if record is None:
        return _NEW
    since = datetime.datetime.fromtimestamp(record.since, datetime.UTC).isoformat(" ", "seconds")
    if record.state == TESTING:
        text = f"it is being tested since {since}, for {timeout_s} s at most"
        return Unavailable(text, "if nova-compute ended meanwhile, it begins again", Source.GATE)
    if not record.sells:
        text = f": {record.text}" if record.text else ""
        remedy = f"repair it, then run nova-gpu test {card}"
        # What says no more may be over after a reset.
        asks: Repair | None = Repair(record.asks) if record.asks else Repair.RESET
        if record.state == Verdict.UNKNOWN.value:
            asks = None
            remedy = (
                "see the test's output in nova-compute's log; it is tested again after an hour, or "
                f"at once after nova-gpu test {card}"
            )
        ended = f"its test of {since} ended with the verdict {record.state}{text}"
        return Unavailable(ended, remedy, Source.TEST, asks=asks)
    if changed:
        return Unavailable(f"since its last test {changed}", _WAIT, Source.GATE)
    return None


class Due(enum.Enum):
    """Whether a card needs a test: none, or one while it is offered, or one to be offered."""

    NO = enum.auto()
    OFFERED = enum.auto()
    KEPT_BACK = enum.auto()


def due(record: Record | None, changed: str | None, now: float, days: int) -> Due:
    """Return whether a card needs a test now; a running one is not among those asked about."""
    if record is None or changed or record.state == TESTING:
        return Due.KEPT_BACK
    if record.state == UNTESTED:
        return Due.OFFERED
    # A clock that was set back makes a test due, rather than never.
    age = now - record.since if now >= record.since else float("inf")
    if record.state == Verdict.UNKNOWN.value:
        return Due.KEPT_BACK if age >= RETRY_S else Due.NO
    if record.sells and days and age >= days * _DAY_S:
        return Due.OFFERED
    return Due.NO


@dataclasses.dataclass(frozen=True, slots=True)
class Idle:
    """A card that no instance has, and that only the gate may keep back."""

    product: str
    record: Record | None
    changed: str | None = None

    @property
    def is_offered(self) -> bool:
        return self.record is not None and self.record.sells and not self.changed

    @property
    def is_unsure(self) -> bool:
        return self.record is not None and self.record.state == Verdict.UNKNOWN.value


def choose(
    cards: Mapping[PciAddress, Idle],
    room: int,
    now: float,
    *,
    days: int,
    leave_free: int,
    is_unsure: bool = False,
) -> list[PciAddress]:
    """Return up to *room* of the idle *cards* to be tested, those that are kept back first.

    Of the offered ones *leave_free* of each product stay, and none is tested while another one's
    test gave no verdict: a test that cannot judge takes one card and not all.

    :param is_unsure: whether a card of the host that is not idle has such a test
    """
    dues = {address: due(c.record, c.changed, now, days) for address, c in cards.items()}
    chosen = sorted(address for address, which in dues.items() if which is Due.KEPT_BACK)[:room]
    free = Counter(card.product for card in cards.values() if card.is_offered)
    if is_unsure or any(card.is_unsure for card in cards.values()):
        return chosen
    candidates = (address for address, which in dues.items() if which is Due.OFFERED)
    for address in sorted(candidates, key=lambda a: (_since(cards[a]), a)):
        product = cards[address].product
        if len(chosen) < room and free[product] > leave_free:
            free[product] -= 1
            chosen.append(address)
    return chosen


def _since(card: Idle) -> Any:
    return card.record.since if card.record else 0.0
