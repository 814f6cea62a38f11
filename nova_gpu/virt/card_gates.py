# SPDX-License-Identifier: Apache-2.0
"""The interface to extensions that keep cards from new instances until something has been done."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Set
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from nova_gpu.core import extensions
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source
from nova_gpu.host.roots import Roots
from nova_gpu.host.state.quarantine import Identities

if TYPE_CHECKING:
    from nova_gpu.virt.usage.ledger import Ledger


@dataclasses.dataclass(frozen=True, slots=True)
class HostCards:
    """The cards of a host at the end of a period.

    ``reasons``: why new instances do not get them, by card. ``held``: those that an instance has or
    is about to get, wholly or in part, or that are being cleaned or tested. ``dirty``: those that
    are to be cleaned. ``divided``: those that are given in parts. ``joined``: the cards that are on
    one board with a card, or that reach it past the IOMMU, by card.
    """

    cards: Mapping[PciAddress, GPU]
    reasons: Mapping[PciAddress, Reasons]
    held: Set[PciAddress]
    dirty: Set[PciAddress]
    divided: Set[PciAddress]
    joined: Mapping[PciAddress, Set[PciAddress]]

    def idle(self) -> list[GPU]:
        """Return the cards that no instance has and that no reason but a test's keeps back."""
        return [
            card
            for address, card in self.cards.items()
            if address not in self.held | self.dirty
            and all(
                own.source in (Source.GATE, Source.TEST) for own in self.reasons.get(address, ())
            )
        ]

    def beside(self, address: PciAddress) -> Set[PciAddress]:
        """Return the other cards that a reset of more than the card at *address* may reach."""
        bus = {a for a in self.cards if (a.domain, a.bus) == (address.domain, address.bus)}
        linked = {link.peer for link in self.cards[address].links}
        return (bus | linked | self.joined.get(address, frozenset())) - {address}


class Gate(Protocol):
    """What keeps cards back, for nova-compute and for the commands."""

    def load(self) -> None:
        """Import what is needed later, here and in the privileged process."""

    def kept_back(self, cards: Collection[GPU]) -> Mapping[PciAddress, Reasons]:
        """Return why new instances do not get some of *cards*, which are all of the host.

        The sources of the reasons are ``GATE``, ``TEST`` and ``REPAIR``. In the commands nothing is
        changed.
        """

    def step(self, host: HostCards, ledger: Ledger) -> Mapping[PciAddress, Reasons]:
        """Go on with the work on cards; return further reasons, in force at once.

        nova-compute calls it in each period but its first, after :meth:`kept_back`. It must not
        take long. A card of which it returns a reason is reserved in Placement before the next
        call, so that only then no instance gets it.
        """


@runtime_checkable
class Observer(Protocol):
    """A gate that also takes in what nova-compute's looks show."""

    def saw(self, reasons: Mapping[PciAddress, Reasons]) -> None:
        """Take in the reasons against cards, those of gates included, after :meth:`kept_back`.

        They are those of the cards themselves, not of the host or its options. It must not take
        long.
        """


def load(roots: Roots, identities: Identities | None) -> list[Gate]:
    """Return the gates of the host that are switched on.

    :param identities: read the identifiers of cards; ``None`` in commands
    :raises InvalidOption: if the value of an option is invalid
    """
    gates = (make(roots, identities) for make in extensions.load("nova_gpu.card_gates"))
    return [gate for gate in gates if gate is not None]
