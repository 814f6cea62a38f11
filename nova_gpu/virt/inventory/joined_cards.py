# SPDX-License-Identifier: Apache-2.0
"""Cards that reach each other past the IOMMU, so that one KVM guest at a time may have them."""

from __future__ import annotations

import collections
import contextlib
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import boundary
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import topology
from nova_gpu.host.pci import acs, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu.virt.card_sets import Sets

LOG = logging.getLogger(__name__)

_BESIDE_PARTS = (
    "direct links join it with {peer}, which is given in parts, and a guest would reach that over "
    "them; see [gpu]split_link_groups"
)
_NEAR_PARTS = (
    "PCI Express ports do not separate it from {peer}, which is given in parts, and a guest would "
    "reach that past the IOMMU; see nova-gpu host check and [gpu]allow_ports_without_acs"
)
_UNREAD = "has ACS that cannot be read"
_REMEDY = "turn ACS on (firmware; no setpci, pci=config_acs= or disable_acs_redir= against it)"
_ONE = "one guest at a time gets them, or guests get virtual functions of one of them"
_ALLOWED = (
    "[gpu]allow_ports_without_acs lets several guests have them: these guests can reach each "
    "other's memory"
)
UNSAFE_INTERRUPTS = (
    "{} is on: unless the IOMMU remaps interrupts, a guest's card can send this host any "
    "interrupt; turn interrupt remapping on in the firmware, and the parameter off"
)

_Joint = frozenset[PciAddress]


class JoinedCards:
    """The cards of a host that reach each other, by links, IOMMU groups or PCI Express ports.

    Links: a guest with one card of a group could read the memory of the others over them. No driver
    of the host blocks the links, and the card itself maps the memory at their other end (for XGMI
    see drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c). They are remembered, because a card bound to
    vfio-pci reports no links. Cards on boards with switches are in no link group, because the sets
    that guests get there separate them.

    IOMMU groups: VFIO gives all devices of one to the same process (Documentation/driver-api/vfio).

    Ports: see :mod:`nova_gpu.host.pci.acs`. A port whose ACS cannot be read counts as without.
    """

    def __init__(self, sets: Sets, roots: Roots, *, serves: bool) -> None:
        """Create it without any card.

        :param serves: whether this is nova-compute, which notes what it has read of ports. The
            commands take from there what their user cannot read, and leave out other ports.
        """
        self._path = pathlib.Path(NOVAS.state_path, "gpu-ports")
        self._sets = sets
        self._roots = roots
        self._serves = serves
        self._linked: dict[PciAddress, _Joint] = {}
        self._groups: Mapping[int, _Joint] = {}
        self._ports: Mapping[str, _Joint] = {}
        self._faults: dict[str, str | None] = {}
        self._by_ports: Mapping[PciAddress, _Joint] = {}
        self._joined: Mapping[PciAddress, _Joint] = {}
        self._former_texts: frozenset[str] = frozenset()

    def look(self, cards: Collection[GPU], had: Collection[PciAddress] = ()) -> None:
        """Read what joins *cards* now, and log what has changed.

        :param had: all cards and functions that guests have, of whose cards the options may select
            some no longer
        """
        self._look_at_links(cards)
        groups: dict[int, set[PciAddress]] = collections.defaultdict(set)
        for gpu in cards:
            if gpu.iommu_group is not None:
                groups[gpu.iommu_group].add(gpu.address)
        self._groups = {key: frozenset(group) for key, group in groups.items() if len(group) > 1}
        own = {str(gpu.address): gpu.address for gpu in cards}
        physical = {item: sysfs.link(sysfs.device(item, self._roots), "physfn") for item in had}
        others = [item for item, card in physical.items() if card not in own]
        self._ports = acs.ports({*own.values(), *others}, self._roots)
        self._read_ports()
        joints = [*self._groups.values()]
        if not CONF.gpu.split_link_groups:
            joints += self._linked.values()
        by_ports = () if CONF.gpu.allow_ports_without_acs else self._unseparated()
        self._by_ports = _merged(by_ports)
        self._joined = _merged([*joints, *by_ports])
        if self._serves:
            self._tell(cards)

    def _look_at_links(self, cards: Collection[GPU]) -> None:
        linked = [
            gpu for gpu in cards if gpu.links and not self._sets.offered([gpu.address], (), None)
        ]
        circles = topology.circles(linked)
        for number in set(circles.values()):
            members = frozenset(card for card in circles if circles[card] == number)
            known = members.union(*(self._linked.get(card, ()) for card in members))
            if known != self._linked.get(min(known)) and CONF.gpu.split_link_groups:
                LOG.warning(
                    "Direct links join GPUs %s, and [gpu]split_link_groups lets several guests "
                    "have them: these guests can reach each other's memory over the links",
                    _listed(known),
                )
            self._linked.update(dict.fromkeys(known, known))

    def _read_ports(self) -> None:
        """Read the ports. What was read of a port is kept while it cannot be read again."""
        faults = acs.read(self._ports, self._roots)
        unread = self._ports.keys() - faults.keys()
        if unread and self._serves:
            try:
                with boundary.crossed():
                    faults |= nova_gpu.privsep.readings.port_faults(sorted(unread))
            except boundary.Failure as error:
                LOG.warning("Cannot read the ACS of PCI Express ports: %s", error)
        elif unread:
            faults |= {port: fault for port, fault in self._noted().items() if port in unread}
        known = {**self._faults, **faults}
        if self._serves:
            known = {**dict.fromkeys(self._ports, _UNREAD), **known}
        known = {port: known[port] for port in self._ports if port in known}
        if self._serves and known != self._faults:
            self._note(known)
        self._faults = known

    def _noted(self) -> dict[str, str | None]:
        """Return what nova-compute has noted of ports since the host booted."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            content = files.read_json(self._path)
            if content["boot_id"] == self._roots.boot_id():
                return dict(content["faults"])
        return {}

    def _note(self, faults: Mapping[str, str | None]) -> None:
        try:
            content = {"boot_id": self._roots.boot_id(), "faults": dict(faults)}
            files.write_json(self._path, content)
        except OSError as error:
            LOG.warning("Cannot note the ACS of ports for commands of other users: %s", error)

    def _unseparated(self) -> dict[_Joint, str]:
        """Return the cards that ports do not separate, with the sentence's part that says why."""
        ports: dict[_Joint, dict[str, list[str]]] = {}
        for port, fault in self._faults.items():
            if fault is not None:
                ports.setdefault(self._ports[port], {}).setdefault(fault, []).append(port)
        return {
            cards: "; ".join(f"port {', '.join(names)} {fault}" for fault, names in faults.items())
            for cards, faults in ports.items()
        }

    def _tell(self, gpus: Collection[GPU]) -> None:
        texts = {
            f"GPUs {_listed(cards)} are in IOMMU group {group}: one guest at a time gets them"
            for group, cards in self._groups.items()
        }
        for cards, why in self._unseparated().items():
            allowed = CONF.gpu.allow_ports_without_acs
            what = _ALLOWED if allowed else f"{_ONE}. To change that, {_REMEDY}"
            texts.add(f"The IOMMU does not separate GPUs {_listed(cards)} ({why}); {what}")
        if gpus and (parameter := acs.unsafe_interrupts(self._roots)):
            texts.add(UNSAFE_INTERRUPTS.format(parameter))
        for text in sorted(texts - self._former_texts):
            LOG.warning("%s", text)
        self._former_texts = frozenset(texts)

    def joined(self) -> Mapping[PciAddress, _Joint]:
        """Return all cards that each joined card is joined with, itself included, by card.

        The options ``[gpu]split_link_groups`` and ``[gpu]allow_ports_without_acs`` leave out what
        is joined by links only, or by ports only.
        """
        return self._joined

    def unseparated_cards(self) -> Mapping[PciAddress, _Joint]:
        """Return those of :meth:`joined` that ports do not separate, by card."""
        return self._by_ports

    def unseparated(self, card: PciAddress) -> bool | None:
        """Return whether a port does not separate *card* from others, ``None`` if it is unknown."""
        ports = [port for port, cards in self._ports.items() if card in cards]
        if any(self._faults.get(port) for port in ports):
            return True
        return None if any(port not in self._faults for port in ports) else False

    def remarks(self, card: PciAddress) -> Iterator[str]:
        """Yield sentences about what *card* is joined with, for the operator."""
        for group, cards in self._groups.items():
            if card in cards:
                yield (
                    f"its IOMMU group {group} has {_listed(cards - {card})}, too: one guest at a "
                    f"time gets cards of it; for a group of its own, {_REMEDY}"
                )
        for cards, why in self._unseparated().items():
            if card in cards:
                allowed = CONF.gpu.allow_ports_without_acs
                what = _ALLOWED if allowed else f"{_ONE}; {_REMEDY}"
                yield (
                    f"the IOMMU does not separate it from {_listed(cards - {card})} ({why}): {what}"
                )
        if self.unseparated(card) is None:
            yield (
                "whether PCI Express ports separate it from other cards is seen by root only, "
                "while nova-compute has not noted it"
            )

    def beside_parts(self, cards: Iterable[GPU], divided: Set[PciAddress]) -> dict[PciAddress, str]:
        """Return why *cards* that are joined with a *divided* card are not offered whole."""
        return {
            gpu.address: self._why(gpu.address).format(peer=min(parted))
            for gpu in cards
            if (parted := self._joined.get(gpu.address, frozenset()) & divided)
        }

    def _why(self, card: PciAddress) -> str:
        by_links = card in self._linked and not CONF.gpu.split_link_groups
        return _BESIDE_PARTS if by_links else _NEAR_PARTS


def _merged(joints: Iterable[_Joint]) -> Mapping[PciAddress, _Joint]:
    """Return the union of all *joints* that have cards in common, by card."""
    joined: dict[PciAddress, _Joint] = {}
    for cards in joints:
        known = cards.union(*(joined.get(card, ()) for card in cards))
        joined.update(dict.fromkeys(known, known))
    return joined


def _listed(cards: Iterable[PciAddress]) -> str:
    return ", ".join(map(str, sorted(cards)))
