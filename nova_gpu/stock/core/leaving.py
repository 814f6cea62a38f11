# SPDX-License-Identifier: Apache-2.0
"""Whether an instance with GPUs of nova-gpu can be given back to stock Nova, and by which alias."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import extra_spec, request
from nova_gpu.core.model import PciAddress
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import Alias, Domain, Instance, Leaving, Obstacle

# Stock Nova's filters have these words too.
_KEPT = (names.HYPERVISOR, names.HYPERVISOR_TYPE)
_OWN = tuple(word.name for word in extra_spec.WORDS if word.name not in _KEPT)
# In a request group with or without a suffix
_OWN_IN_GROUPS = re.compile(
    rf"resources[a-zA-Z0-9_-]*:{names.RESOURCE_CLASS}|trait[a-zA-Z0-9_-]*:(CUSTOM_GPU|CUSTOM_GPU_.*)"
)


def judge(
    instance: Instance, domains: Mapping[str, Domain], aliases: Collection[Alias]
) -> Leaving | None:
    """Return what the instance has by nova-gpu, and what is in the way of giving it back.

    Return ``None`` if it has nothing by nova-gpu and its flavor asks for nothing.

    :param aliases: those that an operator allows, with the host's cards that each gives
    """
    if not (instance.counted or instance.parts or _asks(instance)):
        return None
    cards = tuple(sorted(instance.counted))
    domain = domains.get(instance.uuid, Domain())
    giving = sorted(alias.name for alias in aliases if cards and {*cards} <= {*alias.cards})
    alias = giving[0] if len(giving) == 1 else None
    removed = tuple(
        name for name in instance.extra_specs if name in _OWN or _OWN_IN_GROUPS.fullmatch(name)
    )
    properties = {}
    if alias:
        others = instance.extra_specs.get(names.PCI_ALIAS)
        own = f"{alias}:{len(cards)}"
        properties[names.PCI_ALIAS] = f"{others},{own}" if others else own
    obstacles = [
        *takeover.of_state(instance),
        *_of_cards(instance, cards, domain),
        *_of_aliases(cards, giving),
    ]
    return Leaving(instance, cards, alias, properties, removed, tuple(obstacles))


def _asks(instance: Instance) -> bool:
    try:
        return bool(request.of(instance.extra_specs).requests)
    except exception.InvalidExtraSpec:
        return True


def _of_cards(
    instance: Instance, cards: Iterable[PciAddress], domain: Domain
) -> Iterator[Obstacle]:
    resize = "resize it to a flavor without GPUs, or delete it"
    if instance.parts:
        yield Obstacle("it has vGPUs or MIG instances, which are not given back", resize)
    elif not cards:
        yield Obstacle("its flavor asks for GPUs, and it has none now", f"start it, or {resize}")
    for card in cards:
        if card not in domain.functions:
            yield Obstacle(
                f"Nova's database counts {card} for it, and its domain has no such device",
                "reboot it hard; in containers stock Nova gives no cards",
            )


def _of_aliases(cards: Collection[PciAddress], giving: Collection[str]) -> Iterator[Obstacle]:
    if cards and not giving:
        yield Obstacle(
            "no [pci]alias of this host gives all of its cards, by their PCI ids",
            "add one for their product on this host and on nova-api's and nova-scheduler's",
        )
    elif len(giving) > 1:
        yield Obstacle(
            f"several aliases give its cards, {', '.join(giving)}", "name one with --alias"
        )
