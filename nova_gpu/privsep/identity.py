# SPDX-License-Identifier: Apache-2.0
"""Privileged reading of cards' serial numbers, which the kernel shows to root only."""

from __future__ import annotations

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF
from nova_gpu.core import model
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots


@nova_gpu.privsep.entrypoint.entrypoint
def read(addresses: list[str]) -> dict[str, dict[str, str]]:
    """Return the PCI Express serial numbers of cards as identifiers by kind, by address.

    A card without one is left out.
    """
    roots = Roots.of(CONF.gpu)
    numbers = {a: identity.serial_number(model.PciAddress.parse(a), roots) for a in addresses}
    return {address: {"pcie": number} for address, number in numbers.items() if number}
