# SPDX-License-Identifier: Apache-2.0
"""What tells a host's cards apart, asked as nova-compute can."""

from __future__ import annotations

from collections.abc import Iterable

from oslo_log import log as logging

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots

LOG = logging.getLogger(__name__)


def of(cards: Iterable[GPU], roots: Roots) -> dict[PciAddress, identity.Identity]:
    """By address; with what nova-compute itself can read where the privileged process fails."""
    # Only now: half a second, and only nova-compute asks for privilege here.
    import nova_gpu.privsep.identity

    own = {card.address: identity.of(card, roots) for card in cards}
    try:
        more = nova_gpu.privsep.identity.of([str(address) for address in own])
    except Exception as error:  # whatever privsep raises
        LOG.warning("The serial numbers of GPUs are not known: %s", error)
        more = {}
    return {address: {**more.get(str(address), {}), **own[address]} for address in own}
