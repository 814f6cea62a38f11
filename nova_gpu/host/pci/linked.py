# SPDX-License-Identifier: Apache-2.0
"""Which cards direct links join, where the operator has to say it.

NVIDIA's driver knows its NVLinks, but on a host whose cards go to guests it is not there; and no
product id says which cards of a host a bridge joins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from nova_gpu.core import exception, model

OPTION = "link_groups"

_REMEDY = (
    "write the addresses of cards that are joined with each other, such as "
    "0000:04:00.0 0000:05:00.0, each in one such list"
)

Sets = Sequence[frozenset[model.PciAddress]]


def parse(lines: Iterable[str]) -> Sets:
    """The sets of cards that ``[gpu]link_groups`` names.

    :raises InvalidOption: where one cannot be understood, or a card is in two
    """
    sets: list[frozenset[model.PciAddress]] = []
    for line in lines:
        try:
            named = [model.PciAddress.parse(word) for word in line.split()]
        except exception.InvalidPciAddress as error:
            raise exception.InvalidOption(OPTION, line, str(error), _REMEDY) from error
        if len(set(named)) < 2 or len(set(named)) != len(named):
            reason = "it does not name two cards or more, each once"
            raise exception.InvalidOption(OPTION, line, reason, _REMEDY)
        if again := frozenset[model.PciAddress]().union(*sets).intersection(named):
            reason = f"{min(again)} is in another such list"
            raise exception.InvalidOption(OPTION, line, reason, _REMEDY)
        sets.append(frozenset(named))
    return sets


def with_links(gpus: Iterable[model.GPU], sets: Sets) -> tuple[model.GPU, ...]:
    """*gpus*, of which those that have no links of their own have those that *sets* say."""
    found = tuple(gpus)
    present = {gpu.address for gpu in found}
    peers = {address: each & present for each in sets for address in each}
    return tuple(
        gpu if gpu.links else dataclasses.replace(gpu, links=_links(gpu, peers)) for gpu in found
    )


def _links(
    gpu: model.GPU, peers: dict[model.PciAddress, frozenset[model.PciAddress]]
) -> tuple[model.Link, ...]:
    others = peers.get(gpu.address, frozenset()) - {gpu.address}
    return tuple(model.Link(peer, model.LinkType.NVLINK) for peer in sorted(others))
