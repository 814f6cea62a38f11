# SPDX-License-Identifier: Apache-2.0
"""Privileged reading of cards' identifiers, some of which the kernel shows to root only."""

from __future__ import annotations

import nova.privsep

from nova_gpu.conf import CONF
from nova_gpu.core import model
from nova_gpu.host.pci import discovery, identity
from nova_gpu.host.roots import Roots


@nova.privsep.sys_admin_pctxt.entrypoint  # type: ignore[untyped-decorator]
def read(addresses: list[str]) -> dict[str, dict[str, str]]:
    """Return the identifiers of the GPUs at *addresses*, such as serial numbers, by address.

    :raises InvalidPciAddress: if one of *addresses* is not a PCI address
    :raises DiscoveryFailed: if sysfs cannot be read
    """
    roots = Roots.of(CONF.gpu)
    parsed = [model.PciAddress.parse(address) for address in addresses]
    cards = discovery.cards_at(parsed, roots)
    return {str(card.address): dict(identity.read(card, roots)) for card in cards}
