# SPDX-License-Identifier: Apache-2.0
"""All GPUs of a cloud at one moment: the groups, who has what, and what could boot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from nova_gpu.core.scheduling.capacity import Answer
from nova_gpu.osc import flavors, hosts, providers, query, rest, usage
from nova_gpu.osc.providers import Provider
from nova_gpu.osc.usage import Held


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity for one flavor with GPUs. ``answers`` has one for each host; ``wrong`` is why
    there is none.
    """

    flavor: str
    asks_for: str
    answers: tuple[Answer, ...] = ()
    wrong: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    groups: tuple[Provider, ...]
    held: tuple[Held, ...]
    capacities: tuple[Capacity, ...]


def read(connection: Any) -> Fleet:
    """What ``gpu group list``, ``gpu usage`` and, of each flavor, ``gpu capacity`` show.

    :param connection: an openstack.connection.Connection
    :raises Refused: where Placement does not show it to whoever asks
    """
    snapshot = rest.Snapshot(connection)
    return Fleet(
        tuple(providers.read(snapshot)),
        tuple(usage.held(snapshot)),
        tuple(sorted(_capacities(snapshot), key=lambda each: each.flavor)),
    )


def _capacities(snapshot: rest.Snapshot) -> Iterator[Capacity]:
    for flavor in flavors.read(snapshot):
        asked = flavors.request_of(flavor)
        if not (asked.asks_for_gpus or asked.vgpu_words):
            continue
        try:
            answers = hosts.answers(snapshot, query.Size.of(flavor), asked)
        except query.Unservable as e:
            yield Capacity(flavor.name, flavors.asked_for(asked), wrong=str(e))
        else:
            yield Capacity(flavor.name, flavors.asked_for(asked), tuple(answers))
