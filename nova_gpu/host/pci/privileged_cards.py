# SPDX-License-Identifier: Apache-2.0
"""The cards on which functions with root privileges act: those that the [gpu] options select.

The options are ``addresses``, ``product_ids`` and ``vendors``. The privsep daemon itself checks
them before it acts.
"""

from __future__ import annotations

from typing import Any

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import discovery, selection, sysfs
from nova_gpu.host.roots import Roots

REASON = "the [gpu] options select no GPU of this host at this address"
REMEDY = "see nova-gpu list, and the kernel's log about this address"


def card(address: PciAddress, options: Any) -> GPU | None:
    """Return the card at *address*, ``None`` if there is none or the options do not select it.

    :raises DiscoveryFailed: if sysfs cannot be read
    """
    gpu = discovery.card_at(address, Roots.of(options))
    if gpu is None:
        return None
    chosen = selection.Selection.parse(options.vendors, options.addresses, options.product_ids)
    return gpu if chosen.takes(gpu.address, gpu.product, gpu.class_code) else None


def card_of(function: PciAddress, options: Any) -> GPU | None:
    """Return the selected card of *function*, which is the card or a virtual function of it."""
    try:
        physical = sysfs.link(sysfs.device(function, Roots.of(options)), "physfn")
    except OSError:
        return None
    return card(PciAddress.parse(physical) if physical else function, options)
