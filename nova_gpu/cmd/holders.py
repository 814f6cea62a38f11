# SPDX-License-Identifier: Apache-2.0
"""The guests that have each card, as libvirt's domains tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nova_gpu.cmd import this_host, waiting
from nova_gpu.core import device, exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.usage import domains
from nova_gpu.virt.usage.domains import Named

# The time that an operator waits for a libvirt that does not answer.
_DEADLINE_S = 10.0


def read(
    host: discovery.Discovery, gpus: Iterable[GPU]
) -> tuple[Mapping[PciAddress, tuple[str, ...]], str | None]:
    """Return the uuids of the domains, running or not, that have each card, by card.

    The second value is why the domains are unknown, ``None`` if libvirt answered.
    """
    named, unknown = by_domain(host, gpus, (), _DEADLINE_S)
    return by_card(named), unknown


def by_domain(
    host: discovery.Discovery,
    whole: Iterable[GPU],
    divided: Iterable[DividedCard],
    deadline_s: float,
) -> tuple[Mapping[str, Named], str | None]:
    """Return the devices of each domain by its uuid, and why they are unknown, or ``None``."""
    made_vgpus = MadeVGPUs(host.vgpus).by_instance()
    parts = domains.parts(whole, host.roots, divided, vgpus=made_vgpus)
    try:
        with waiting.shown("asking libvirt"):
            ask = waiting.within(deadline_s)
            return ask(lambda: domains.look(this_host.Reader(), parts)), None
    except exception.DomainsUnreadable as error:
        return {}, error.fact
    except TimeoutError as error:
        return {}, f"libvirt: {error}"


def by_card(named: Mapping[str, Named]) -> Mapping[PciAddress, tuple[str, ...]]:
    """Return the uuids of the domains that have each card or a part of it, by card."""
    held: dict[PciAddress, tuple[str, ...]] = {}
    for uuid, has in sorted(named.items()):
        # An instance with several parts of a card is listed once.
        for card in set(map(device.function, has.every)):
            held[card] = (*held.get(card, ()), uuid)
    return held
