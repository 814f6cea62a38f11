# SPDX-License-Identifier: Apache-2.0
"""Peer access (PCIe peer-to-peer) between the cards of a KVM guest.

A guest gets it if its flavor requests it, and the host, the versions of libvirt and QEMU and the
product of the cards allow it. The guest's driver uses it between cards that QEMU shows with the
same number, their GPUDirect clique.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.placement_policy import PeerAccess
from nova_gpu.core.guest import peers
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import host_bridges
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:
    from nova import objects

    from nova_gpu.core.flavor.request import FlavorRequest

_WORD = f"{names.PEER_ACCESS}={PeerAccess.REQUIRED}"


class Peers:
    """The judgement of which cards of a host can have peer access in a guest."""

    def __init__(
        self,
        roots: Roots,
        libvirt_version: Callable[[], int | None] = lambda: None,
        qemu_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._roots = roots
        self._libvirt_version = libvirt_version
        self._qemu_version = qemu_version
        self._passing: dict[str, bool] = {}

    def look_again(self) -> None:
        self._passing = {}

    def obstacle(self, cards: Collection[GPU]) -> str | None:
        """Return why *cards* cannot have peer access to each other in a guest, else ``None``."""
        libvirt, qemu = self._libvirt_version(), self._qemu_version()
        for card in cards:
            product = card.product
            if not peers.supports(card):
                return (
                    f"{product.name or product.key} is none of the products with which NVIDIA "
                    "supports that"
                )
            if reason := peers.too_old(product, libvirt, qemu):
                return reason
            root = card.pci_root
            if root is not None and root not in self._passing:
                self._passing[root] = host_bridges.pass_on(root, self._roots)
            if root is None or not self._passing[root]:
                return (
                    f"the host's root complex above {card.address} is not known to pass on "
                    "requests between cards"
                )
        return None

    def cliques(
        self, instance: objects.Instance, request: FlavorRequest, cards: Sequence[GPU]
    ) -> Mapping[PciAddress, int]:
        """Return the number of the clique of each card that gets peer access, by address.

        Cards without peer access are left out: all of them if the flavor does not request it.

        :raises GuestUnfit: if the flavor requires peer access, and the image hides the hypervisor
        :raises BetterElsewhere: if the flavor requires peer access, and this host cannot offer it
        """
        wanted = request.whole.arrangement.peer_access if request.whole else PeerAccess.NONE
        if wanted is PeerAccess.NONE or len(cards) < 2:
            return {}
        if instance.image_meta.properties.get(names.IMAGE_HIDDEN):
            if wanted is PeerAccess.REQUIRED:
                raise exception.GuestUnfit(
                    f"its flavor says {_WORD}, the GPUs' driver goes by it only where it sees that "
                    f"it is in a guest, and the image's {names.IMAGE_HIDDEN} hides that",
                    "use an image without that, or another flavor",
                )
            return {}
        able: list[GPU] = []
        for product in dict.fromkeys(card.product.key for card in cards):
            alike = [card for card in cards if card.product.key == product]
            reason = self.obstacle(alike) if len(alike) > 1 else None
            if reason is None:
                able += alike
            elif wanted is PeerAccess.REQUIRED:
                raise exception.BetterElsewhere(
                    None,
                    f"its flavor says {_WORD}, and its GPUs cannot have peer access on this host: "
                    f"{reason}",
                    "use another flavor, unless another host can offer it",
                )
        return peers.cliques(able)
