# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cliques: sets of a guest's cards that the hypervisor declares to be peers.

The driver in a guest cannot see what the host's root complex does. It lets GPUs access each other's
memory only if a capability in their configuration space declares them one clique, and does not test
it ("GPUDirect with PCI Pass-Through Virtualization"; QEMU's hw/vfio/pci-quirks.c has the place of
the capability). If the declaration is wrong, what one GPU writes is lost or goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nova_gpu.core import vendors
from nova_gpu.core.model import GPU, PciAddress, Product

# QEMU refuses the capability for functions that are not displays (vfio_add_nv_gpudirect_cap).
_DISPLAY = 0x03
# The specification of 2017, and that of 2023 for Turing and later, which puts the capability
# elsewhere, because these have another capability at the old place.
_FIRST_PLACE = frozenset({"pascal", "volta"})
_SECOND_PLACE = frozenset({"turing", "ampere", "ada", "hopper", "blackwell"})
# NVIDIA supports none of these. Their driver trusts the capability all the same, and data that one
# of two RTX 3090 wrote to the other was lost (NVIDIA/nccl issue 2335).
_CONSUMERS = frozenset({"geforce", "titan", "cmp"})
# The first QEMU, in libvirt's notation, that knows the second place (its commit f6b30c1984).
_QEMU = 8001000
# The first libvirt that accepts properties of QEMU's devices in the domain.
_LIBVIRT = 8002000
_MOST = 16


def supports(card: GPU) -> bool:
    """Return whether *card* can be in a clique: its driver reads it, and NVIDIA supports it.

    A card with an unknown name or architecture cannot.
    """
    product = card.product
    words = (product.name or "").lower().split()
    return (
        product.vendor_id == vendors.NVIDIA
        and card.class_code >> 16 == _DISPLAY
        and product.architecture in _FIRST_PLACE | _SECOND_PLACE
        and bool(words)
        and _CONSUMERS.isdisjoint(words)
    )


def too_old(product: Product, libvirt: int | None, qemu: int | None) -> str | None:
    """Return why a host with these versions cannot declare a clique, ``None`` if it can.

    :param libvirt: libvirt's version as its API returns it, 8002000 for 8.2.0, ``None`` if unknown
    """
    if libvirt is None or qemu is None:
        return "the versions of libvirt and QEMU are not known"
    if libvirt < _LIBVIRT:
        return "it needs libvirt 8.2.0 or later"
    if product.architecture in _SECOND_PLACE and qemu < _QEMU:
        return f"with {product.architecture} it needs QEMU 8.1.0 or later"
    return None


def cliques(cards: Iterable[GPU]) -> Mapping[PciAddress, int]:
    """Return the number of each card's clique, by address.

    Cards of one product are one clique; a product with a single card has none.
    """
    by_product: dict[str, list[PciAddress]] = {}
    for card in cards:
        by_product.setdefault(card.product.key, []).append(card.address)
    several = [gpus for gpus in by_product.values() if len(gpus) > 1][:_MOST]
    return {address: number for number, gpu in enumerate(several) for address in gpu}
