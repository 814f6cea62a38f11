# SPDX-License-Identifier: Apache-2.0
"""What has to be true of a KVM guest and its cards before it is started."""

from __future__ import annotations

from collections.abc import Sequence

from nova import objects
from nova.virt.libvirt import utils as libvirt_utils

from nova_gpu.conf import CONF
from nova_gpu.core import exception, mmio
from nova_gpu.core.flavor import guest_options
from nova_gpu.core.model import GPU
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt import flavors
from nova_gpu.virt.delivery import guest_pci


def refuse_unfit_guest(instance: objects.Instance, cards: Sequence[GPU], roots: Roots) -> None:
    """Refuses what libvirt would only notice when the instance's guest is gone already.

    :raises GuestUnfit: for its machine type, or more memory of GPUs than it can map
    :raises InvalidExtraSpec: for a word of its flavor
    :raises DeviceUnavailable: where a card cannot be read
    """
    guest_options.option_rom(flavors.extra_specs_of(instance))
    guest_pci.refuse_machine_type(libvirt_utils.get_machine_type(instance.image_meta))
    needed = sum(_mmio_bytes(card, roots) for card in cards)
    if needed > CONF.gpu.guest_mmio_gib * mmio.GIB:
        raise exception.GuestUnfit(
            f"together they map {needed / mmio.GIB:g} GiB of memory, and a guest has room for "
            f"{CONF.gpu.guest_mmio_gib} GiB above 4 GiB",
            "ask for fewer, or set [gpu]guest_mmio_gib on the hosts if the firmware and CPU model "
            "of their guests give them more",
        )


def _mmio_bytes(card: GPU, roots: Roots) -> int:
    try:
        return passthrough.mmio_bytes(card, roots)
    except (OSError, ValueError) as error:
        raise exception.DeviceUnavailable(
            str(card.address), f"it cannot be read: {error}", "see the kernel's log of the host"
        ) from error
