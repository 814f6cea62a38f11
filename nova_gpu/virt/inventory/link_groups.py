# SPDX-License-Identifier: Apache-2.0
"""Link groups: cards that direct links join, so that only one KVM guest at a time may have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set

from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import topology
from nova_gpu.virt.sets import Sets

LOG = logging.getLogger(__name__)

_BESIDE_PARTS = (
    "direct links join it with {peer}, which is given in parts, and a guest would reach that over "
    "them; see [gpu]split_link_groups"
)


class LinkGroups:
    """The link groups of a host, remembered, because a card bound to vfio-pci reports no links.

    A guest with one card of a group could read the memory of the others over the links: no driver
    of the host blocks the links, and the card itself maps the memory at their other end (for XGMI
    see drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c). Cards on boards with NVSwitches are in no link
    group, because Fabric Manager's partitions separate them.
    """

    def __init__(self, sets: Sets) -> None:
        self._sets = sets
        self._joined: dict[PciAddress, frozenset[PciAddress]] = {}

    def look(self, cards: Collection[GPU]) -> None:
        """Add the link groups of *cards* to those that are remembered."""
        linked = [
            gpu for gpu in cards if gpu.links and not self._sets.offered([gpu.address], (), None)
        ]
        circles = topology.circles(linked)
        for number in set(circles.values()):
            members = frozenset(card for card in circles if circles[card] == number)
            known = members.union(*(self._joined.get(card, ()) for card in members))
            if known != self._joined.get(min(known)) and CONF.gpu.split_link_groups:
                LOG.warning(
                    "Direct links join GPUs %s, and [gpu]split_link_groups lets several guests "
                    "have them: these guests can reach each other's memory over the links",
                    ", ".join(map(str, sorted(known))),
                )
            self._joined.update(dict.fromkeys(known, known))

    def joined(self) -> Mapping[PciAddress, frozenset[PciAddress]]:
        """Return all cards of each linked card's group, itself included, by card.

        The result is empty if ``[gpu]split_link_groups`` lets several guests have cards of a group.
        """
        return {} if CONF.gpu.split_link_groups else self._joined

    def beside_parts(self, cards: Iterable[GPU], divided: Set[PciAddress]) -> dict[PciAddress, str]:
        """Return why *cards* in one link group with a *divided* card are not offered whole."""
        joined = self.joined()
        return {
            gpu.address: _BESIDE_PARTS.format(peer=min(parted))
            for gpu in cards
            if (parted := joined.get(gpu.address, frozenset()) & divided)
        }
