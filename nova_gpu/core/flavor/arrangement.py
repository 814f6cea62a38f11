# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of an instance are to lie: near each other on a host, and over the hosts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import TypeVar

from nova_gpu.core import exception, names


class Topology(enum.StrEnum):
    """What all GPUs of one request group have in common."""

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"


class TopologyPolicy(enum.StrEnum):
    """Whether the instance may do without it."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Distribution(enum.StrEnum):
    """Whether instances share as few hosts with GPUs as can be, or as many."""

    PACK = "pack"
    SPREAD = "spread"


class GuestTopology(enum.StrEnum):
    """Whether a KVM guest sees its GPUs in the host's PCI Express tree and on its NUMA nodes."""

    AUTO = "auto"
    REQUIRED = "required"
    FLAT = "flat"


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """What a flavor says of it. ``distribution`` is ``None`` where the cloud's option counts."""

    topology: Topology = Topology.ANY
    policy: TopologyPolicy = TopologyPolicy.REQUIRED
    distribution: Distribution | None = None

    def required(self, count: int) -> Topology:
        """What *count* GPUs of one request group must have in common. One is never apart."""
        insists = self.policy is TopologyPolicy.REQUIRED and count > 1
        return self.topology if insists else Topology.ANY


ANY = Arrangement()

_Word = TypeVar("_Word", bound=enum.StrEnum)


def parse(extra_specs: Mapping[str, str]) -> Arrangement:
    """:raises InvalidExtraSpec: for a word that is none of these, and for a policy alone"""
    policy = parse_policy(extra_specs)
    if policy and names.TOPOLOGY not in extra_specs:
        raise exception.InvalidExtraSpec(
            names.TOPOLOGY_POLICY,
            extra_specs[names.TOPOLOGY_POLICY],
            "the flavor says nothing of the topology",
            f"{names.TOPOLOGY_POLICY} beside {names.TOPOLOGY}",
        )
    return Arrangement(
        parse_topology(extra_specs) or Topology.ANY,
        policy or TopologyPolicy.REQUIRED,
        parse_distribution(extra_specs),
    )


def parse_topology(extra_specs: Mapping[str, str]) -> Topology | None:
    """:raises InvalidExtraSpec: where it is none of :class:`Topology`"""
    return _word(names.TOPOLOGY, extra_specs, Topology)


def parse_policy(extra_specs: Mapping[str, str]) -> TopologyPolicy | None:
    """:raises InvalidExtraSpec: where it is none of :class:`TopologyPolicy`"""
    return _word(names.TOPOLOGY_POLICY, extra_specs, TopologyPolicy)


def parse_distribution(extra_specs: Mapping[str, str]) -> Distribution | None:
    """:raises InvalidExtraSpec: where it is none of :class:`Distribution`"""
    return _word(names.DISTRIBUTION, extra_specs, Distribution)


def parse_guest_topology(extra_specs: Mapping[str, str]) -> GuestTopology | None:
    """:raises InvalidExtraSpec: where it is none of :class:`GuestTopology`"""
    return _word(names.GUEST_TOPOLOGY, extra_specs, GuestTopology)


def allowed(words: type[enum.StrEnum]) -> str:
    """For who is told what to write"""
    return " or ".join(words)


def _word(key: str, extra_specs: Mapping[str, str], words: type[_Word]) -> _Word | None:
    text = extra_specs.get(key)
    if text is None:
        return None
    try:
        return words(text.strip().lower())
    except ValueError:
        raise exception.InvalidExtraSpec(
            key, text, "it is not one of its words", allowed(words)
        ) from None
