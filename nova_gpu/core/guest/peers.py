# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's cliques: sets of a guest's cards of which the hypervisor warrants that each reaches the
memory of the others.

A guest's driver cannot see what the host's root complex does, so it has its GPUs reach each other
only where a capability in their configuration space says that it works, and does not try whether it
does ("GPUDirect with PCI Pass-Through Virtualization"; QEMU's hw/vfio/pci-quirks.c says where that
is). Where it is said wrongly, what one GPU writes is lost or goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nova_gpu.core.model import GPU, PciAddress, Product

_NVIDIA = "10de"
# QEMU refuses all that is no display (vfio_add_nv_gpudirect_cap).
_DISPLAY = 0x03
# The specification of 2017, and the one of 2023 for Turing and later, by which the capability is
# elsewhere: at the old place these have another one.
_FIRST_PLACE = frozenset({"pascal", "volta"})
_SECOND_PLACE = frozenset({"turing", "ampere", "ada", "hopper", "blackwell"})
# On these NVIDIA supports it nowhere. Their driver believes the capability all the same, and what
# one of two RTX 3090 wrote to the other was not there (NVIDIA/nccl issue 2335).
_CONSUMERS = frozenset({"geforce", "titan", "cmp"})
# The first QEMU, as libvirt counts, that finds the second place (its commit f6b30c1984).
_QEMU = 8001000
# The first libvirt that takes properties of QEMU's devices for the domain.
_LIBVIRT = 8002000
_MOST = 16


def supports(card: GPU) -> bool:
    """Whether the card's driver goes by it, and NVIDIA supports that. A card of which name or
    architecture is not known is none."""
    product = card.product
    words = (product.name or "").lower().split()
    return (
        product.vendor_id == _NVIDIA
        and card.class_code >> 16 == _DISPLAY
        and product.architecture in _FIRST_PLACE | _SECOND_PLACE
        and bool(words)
        and _CONSUMERS.isdisjoint(words)
    )


def too_old(product: Product, libvirt: int | None, qemu: int | None) -> str | None:
    """Why a guest cannot be told of *product* with these versions, as libvirt counts them; ``None``
    where it can.

    :param libvirt: ``None`` where it is not known, as *qemu*
    """
    if libvirt is None or qemu is None:
        return "the versions of libvirt and QEMU are not known"
    if libvirt < _LIBVIRT:
        return "it takes libvirt 8.2.0"
    if product.architecture in _SECOND_PLACE and qemu < _QEMU:
        return f"with {product.architecture} it takes QEMU 8.1.0"
    return None


def cliques(cards: Iterable[GPU]) -> Mapping[PciAddress, int]:
    """The number of each card's clique, of *cards* that all reach each other: one for each product.
    One alone in its clique has none, as that would say nothing."""
    by_product: dict[str, list[PciAddress]] = {}
    for card in cards:
        by_product.setdefault(card.product.key, []).append(card.address)
    several = [each for each in by_product.values() if len(each) > 1][:_MOST]
    return {address: number for number, each in enumerate(several) for address in each}
