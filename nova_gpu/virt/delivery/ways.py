# SPDX-License-Identifier: Apache-2.0
"""The ways in which a host gives devices to guests: the one place that names all of them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, DeliveryMode
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import pci_aliases
from nova_gpu.virt.delivery.container_nodes import ContainerNodes
from nova_gpu.virt.delivery.delivery import WholeCards
from nova_gpu.virt.delivery.pci_passthrough import PCIPassthrough

if TYPE_CHECKING:
    from nova_gpu.virt.usage.ledger import Ledger


def of_whole_cards(
    roots: Roots,
    unbound: pathlib.Path,
    kept: Callable[[GPU], str | None],
    noted: Ledger | None = None,
) -> WholeCards:
    """The way in which this host gives whole cards, by ``[libvirt]virt_type``.

    :param unbound: the folder of :class:`nova_gpu.virt.delivery.unbound.Unbound`
    :param kept: why a card stays the host's own display
    :param noted: who has what, where guests are given cards, as nova-compute alone does
    """
    if DeliveryMode.of_whole_cards(CONF.libvirt.virt_type) is DeliveryMode.LXC:
        return ContainerNodes(roots, kept, serves=noted is not None)
    return PCIPassthrough(roots, pci_aliases.of_host(), unbound, noted)
