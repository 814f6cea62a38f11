# SPDX-License-Identifier: Apache-2.0
"""The PCI Express tree of a guest's cards: the part of the host's tree that its cards are in.

::

    0000:00          the guest's own root, with the devices of Nova's
    0000:e8          an expander, the stand-in of a root bus of the host: on a NUMA node
      +-- a root port -- a card
      `-- a root port -- the upstream port of a switch
                           +-- a downstream port -- a card
                           `-- a downstream port -- a card

For two cards the guest sees what the host sees: whether they are on one NUMA node, on one root bus
and behind one switch. A switch with only one card of the guest tells nothing, and is left out.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from nova_gpu.core.model import GPU, PciAddress

# Bus numbers have 8 bits. The expanders get the last ones; the others remain for the guest's own
# root, whose ports firmware numbers from 1 on. libvirt refuses numbers above 254 for an expander.
_END = 256
_LEFT = 64
# Each expander takes one of the 31 slots of the guest's own root, of which the machine uses some.
_MOST_EXPANDERS = 16
_SLOTS = 32
# OVMF has 40 KiB of I/O ports on q35 (OvmfPkg/PlatformPei). A bridge in front of a BAR with I/O
# ports takes 4, and so do the devices on the guest's own root. If they do not suffice and there are
# expanders, OVMF assigns no card an address, not even for its memory.
OVMF_MOST_WITH_IO = 9


class Model(enum.StrEnum):
    """The models of PCI controllers, by libvirt's names."""

    EXPANDER = "pcie-expander-bus"
    ROOT_PORT = "pcie-root-port"
    UPSTREAM = "pcie-switch-upstream-port"
    DOWNSTREAM = "pcie-switch-downstream-port"


@dataclasses.dataclass(frozen=True, slots=True)
class Controller:
    """A PCI controller of the guest.

    ``index`` is its number in the domain, and also libvirt's number of the bus behind it. ``above``
    is the index of the controller whose bus it is on, and ``slot`` its slot there; an expander
    takes any slot on the guest's own root. Only expanders have a ``bus_number``, as the guest sees
    it, and a host NUMA ``node``, ``None`` if unknown.
    """

    index: int
    model: Model
    above: int = 0
    slot: int = 0
    bus_number: int | None = None
    node: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GuestPlace:
    """The place of a card in a guest: its address there, its NUMA node and its switch.

    ``node`` is the host's NUMA node from :meth:`Tree.places`, and the guest's in the metadata;
    ``None`` if unknown. ``switch`` is the guest's address of the upstream port, ``None`` for a card
    that is not behind a switch.
    """

    address: PciAddress
    node: int | None
    switch: PciAddress | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """The PCI controllers of a guest, and the controller that each of its cards is behind.

    ``behind`` maps a card's address on the host to the index of that controller.
    """

    controllers: tuple[Controller, ...]
    behind: Mapping[PciAddress, int]

    @property
    def nodes(self) -> tuple[int, ...]:
        """The known NUMA nodes of the host that the cards are on, in the order of expanders."""
        numbers = (
            controller.node for controller in self.controllers if controller.node is not None
        )
        return tuple(dict.fromkeys(numbers))

    def places(self) -> Mapping[PciAddress, GuestPlace]:
        """Return the place of each card in the guest, by the card's address on the host.

        The addresses are predicted: the guest's firmware numbers buses from the root's own number
        on, in the order of slots, and those below a bridge before those of the next bridge.
        ``controllers`` has the same order.
        """
        above = {controller.index: controller for controller in self.controllers}
        behind, number = {}, 0
        for controller in self.controllers:
            number = number + 1 if controller.bus_number is None else controller.bus_number
            behind[controller.index] = number
        paths = {}
        for card, index in self.behind.items():
            port, switch = above[index], None
            if port.model is Model.DOWNSTREAM:
                switch = PciAddress(0, behind[above[port.above].above], 0, 0)
            while port.above:
                port = above[port.above]
            address = PciAddress(0, behind[index], 0, card.function)
            paths[card] = GuestPlace(address, port.node, switch)
        return paths


def says_more(cards: Iterable[GPU]) -> bool:
    """Return whether the tree of *cards* says more to a guest than :func:`flat` ports do.

    It does if the cards are on several NUMA nodes, or if some of them share a switch.
    """
    gpus = list(cards)
    nodes = {card.numa_node for card in gpus}
    switches = [card.pcie_switch for card in gpus if card.pcie_switch is not None]
    return len(nodes) > 1 or len(set(switches)) < len(switches)


def of(cards: Iterable[GPU]) -> Tree | None:
    """Return the tree for a guest with these cards, ``None`` if buses or slots do not suffice."""
    roots = [
        _grouped(root, lambda card: card.pcie_switch or card.address)
        for root in _grouped(cards, lambda card: (card.numa_node, card.pci_root or card.address))
    ]
    number = _END - sum(map(_buses, roots))
    slots = [*map(len, roots), *(len(port) for root in roots for port in root)]
    if len(roots) > _MOST_EXPANDERS or max(slots, default=0) > _SLOTS or number < _LEFT:
        return None
    growing = _Growing()
    for root in roots:
        node = root[0][0].numa_node
        expander = growing.add(Model.EXPANDER, bus_number=number, node=node)
        number += _buses(root)
        for slot, port in enumerate(root):
            growing.add_port(expander, slot, port)
    return Tree(tuple(growing.controllers), growing.behind)


def flat(cards: Iterable[GPU]) -> Mapping[PciAddress, int]:
    """Return the index of the root port for each card, for a guest with all cards on its own root.

    The cards are by their address on the host; the indexes begin at 1.
    """
    return {card.address: index for index, card in enumerate(cards, start=1)}


class _Growing:
    def __init__(self) -> None:
        self.controllers: list[Controller] = []
        self.behind: dict[PciAddress, int] = {}

    def add(self, model: Model, above: int = 0, slot: int = 0, **expanders: int | None) -> int:
        """Add a controller, and return its index."""
        index = len(self.controllers) + 1
        self.controllers.append(Controller(index, model, above, slot, **expanders))
        return index

    def add_port(self, expander: int, slot: int, cards: Sequence[GPU]) -> None:
        """Add a root port on the expander for one card, or for the cards behind one switch."""
        below = self.add(Model.ROOT_PORT, expander, slot)
        if len(cards) == 1:
            self.behind[cards[0].address] = below
            return
        switch = self.add(Model.UPSTREAM, below)
        for number, card in enumerate(cards):
            self.behind[card.address] = self.add(Model.DOWNSTREAM, switch, number)


def _grouped(cards: Iterable[GPU], key: Callable[[GPU], Hashable]) -> list[list[GPU]]:
    groups: dict[Hashable, list[GPU]] = {}
    for card in cards:
        groups.setdefault(key(card), []).append(card)
    return list(groups.values())


def _buses(root: Sequence[Sequence[GPU]]) -> int:
    """Return how many bus numbers an expander needs.

    It needs its own number, one behind each of its ports, and for a switch one inside of the switch
    and one behind each of the switch's ports.
    """
    return 1 + sum(1 if len(port) == 1 else 2 + len(port) for port in root)


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A NUMA cell for a guest whose flavor and image do not mention NUMA.

    ``node`` is the host's NUMA node that some of the guest's cards are on. ``cpus`` are the numbers
    of the cell's vCPUs; if the guest has fewer vCPUs than cells, some cells have none.
    """

    node: int
    cpus: range
    memory_mib: int


def cells(nodes: Sequence[int], vcpus: int, memory_mib: int) -> tuple[Cell, ...]:
    """Return one cell for each of *nodes*, with vCPUs and memory divided as equally as possible."""
    parts = (_shares(total, len(nodes)) for total in (vcpus, memory_mib))
    return tuple(
        Cell(node, cpus, len(memory)) for node, cpus, memory in zip(nodes, *parts, strict=True)
    )


def _shares(total: int, count: int) -> list[range]:
    """Split ``range(total)`` into *count* ranges whose lengths differ by at most 1."""
    ends = [-(-total * part // count) for part in range(count + 1)] if count else []
    return [range(*pair) for pair in itertools.pairwise(ends)]
