# SPDX-License-Identifier: Apache-2.0
"""The delivery of plain virtual functions: without a vGPU type, and without a host driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.core import boundary
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import gim, virtual_functions
from nova_gpu.virt.delivery.hostdev_parts import VirtualFunctions

LOG = logging.getLogger(__name__)


class PlainFunctions(VirtualFunctions):
    """The delivery of virtual functions that have no vGPU type and no driver on the host."""

    kind = Kind.PLAIN
    words = "a virtual function as it is"
    managed = True

    def _obstacle_of(self, function: PciAddress) -> str | None:
        return virtual_functions.obstacle(function, self._roots)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return parent is not None


def divide(card: str, number: int) -> None:
    """Enable *number* virtual functions of *card*, as ``[gpu]virtual_functions`` states."""
    nova_gpu.privsep.vgpu.enable_functions(card, number=number)


def modes(
    cards: Iterable[GPU], roots: Roots, before: Mapping[PciAddress, str]
) -> Mapping[PciAddress, str]:
    """Return the partition modes of those *cards* that AMD's module gim has.

    :param before: the last result, which stays if the files cannot be read
    """
    addresses = [str(card.address) for card in cards if gim.shows_modes(card.address, roots)]
    if not addresses:
        return {}
    try:
        with boundary.crossed():
            answer = nova_gpu.privsep.vgpu.partition_modes(addresses)
    except boundary.Failure as error:
        LOG.warning("Cannot read the partition modes of AMD's cards, keep the last: %s", error)
        return before
    return {PciAddress.parse(address): mode for address, mode in answer.items()}
