# SPDX-License-Identifier: Apache-2.0
"""Which guest has which card, as libvirt says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nova_gpu.cmd import libvirt_connection, waiting
from nova_gpu.core import device, exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.virt.inventory import offer, survey
from nova_gpu.virt.usage import domains

# Of a libvirt that nobody is at, an operator who looks does not wait for longer.
_DEADLINE_S = 10.0


def read(
    looked: survey.Survey, found: Iterable[GPU], deadline_s: float = _DEADLINE_S
) -> tuple[Mapping[PciAddress, tuple[str, ...]], str | None]:
    """The uuids of the domains that name each card, running or only defined (of Nova's those are
    the instances'), and why nothing is known of that."""
    every = offer.offer(found, {}, looked.delivery.mode, {}, offer.Ailments())
    parts = survey.parts(every, looked.roots)
    try:
        with waiting.shown("asking libvirt"):
            ask = waiting.within(deadline_s)
            named = ask(lambda: domains.gpus_by_domain(libvirt_connection.Reader(), parts))
    except exception.DomainsUnreadable as error:
        return {}, error.fact
    except TimeoutError as error:
        return {}, f"libvirt: {error}"
    held: dict[PciAddress, tuple[str, ...]] = {}
    for uuid, addresses in sorted(named.items()):
        # Who has parts of a card is told once.
        for card in set(map(device.function, addresses)):
            held[card] = (*held.get(card, ()), uuid)
    return held, None
