# SPDX-License-Identifier: Apache-2.0
"""Privileged calls that bind cards to vfio-pci for guests, and back to the host's drivers."""

from __future__ import annotations

import pathlib

import nova_gpu.privsep.entrypoint
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import exception, model
from nova_gpu.host import child_process
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.processes import Holder
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import binding
from nova_gpu.host.vfio.binding import RebindSettings


def records() -> pathlib.Path:
    """Return the folder with one record for each card bound to vfio-pci: its former drivers."""
    return pathlib.Path(NOVAS.state_path, "gpu-bindings")


@nova_gpu.privsep.entrypoint.entrypoint
def give_to_guests(address: str) -> None:
    """Bind the GPU at *address*, as :func:`nova_gpu.host.vfio.binding.give_to_guests`."""
    card = model.PciAddress.parse(address)
    if privileged_cards.card(card, CONF.gpu) is None:
        raise exception.BindingFailed(address, privileged_cards.REASON, privileged_cards.REMEDY)
    binding.give_to_guests(card, settings(CONF.gpu.bind_timeout))


@nova_gpu.privsep.entrypoint.entrypoint
def give_to_host(address: str) -> None:
    """Bind a card to its former drivers; the [gpu] options need not select it any more."""
    binding.give_to_host(model.PciAddress.parse(address), settings(CONF.gpu.bind_timeout))


@nova_gpu.privsep.entrypoint.entrypoint
def in_use(addresses: list[str]) -> dict[str, list[Holder]]:
    """Return the processes that have a GPU open, by the GPU's address.

    A GPU that no process has open is left out. If the search for them fails, which
    :func:`give_to_guests` repeats, all processes may have each of them open.
    """
    cards = [model.PciAddress.parse(address) for address in addresses]
    try:
        holders = binding.in_use(cards, settings(CONF.gpu.bind_timeout))
    except child_process.Failed as error:
        unknown: Holder = (1, f"all processes: the search {error}", None)
        return {key: [unknown] for key in addresses}
    return {str(card): who for card, who in holders.items()}


def settings(timeout_s: float) -> RebindSettings:
    return RebindSettings(Roots.of(CONF.gpu), records(), timeout_s)
