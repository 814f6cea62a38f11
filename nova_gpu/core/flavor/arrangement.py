# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of an instance are to lie: near each other on a host, near its network functions or
disks, and over the hosts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import TypeVar

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import words

# The extra specs that say it
WORDS = (
    *(names.TOPOLOGY, names.TOPOLOGY_POLICY, names.DISTRIBUTION),
    *(names.NEAR, names.NEAR_POLICY),
)


class Topology(enum.StrEnum):
    """What all GPUs of one request group have in common."""

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"


class TopologyPolicy(enum.StrEnum):
    """Whether the instance may do without it."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Near(enum.StrEnum):
    """Which of the PCI devices that Nova gives the instance its GPUs are to be beside."""

    ANY = "any"
    NIC = "nic"
    NVME = "nvme"


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
    near: Near = Near.ANY
    near_policy: TopologyPolicy = TopologyPolicy.PREFERRED

    def required(self, count: int) -> Topology:
        """What *count* GPUs of one request group must have in common. One is never apart."""
        insists = self.policy is TopologyPolicy.REQUIRED and count > 1
        return self.topology if insists else Topology.ANY

    @property
    def insists_on_near(self) -> bool:
        """Whether the instance may not do with GPUs that are not beside such a device."""
        return self.near is not Near.ANY and self.near_policy is TopologyPolicy.REQUIRED


ANY = Arrangement()

_Word = TypeVar("_Word", bound=enum.StrEnum)


def parse(extra_specs: Mapping[str, str]) -> Arrangement:
    """:raises InvalidExtraSpec: for a word that is none of these, and for a policy alone"""
    policy, near_policy = parse_policy(extra_specs), parse_near_policy(extra_specs)
    if policy and names.TOPOLOGY not in extra_specs:
        raise _alone(names.TOPOLOGY_POLICY, extra_specs, "the topology", names.TOPOLOGY)
    if near_policy and names.NEAR not in extra_specs:
        raise _alone(names.NEAR_POLICY, extra_specs, "what they are to be near", names.NEAR)
    return Arrangement(
        parse_topology(extra_specs) or Topology.ANY,
        policy or TopologyPolicy.REQUIRED,
        parse_distribution(extra_specs),
        parse_near(extra_specs) or Near.ANY,
        near_policy or TopologyPolicy.PREFERRED,
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


def parse_near(extra_specs: Mapping[str, str]) -> Near | None:
    """:raises InvalidExtraSpec: where it is none of :class:`Near`"""
    return _word(names.NEAR, extra_specs, Near)


def parse_near_policy(extra_specs: Mapping[str, str]) -> TopologyPolicy | None:
    """:raises InvalidExtraSpec: where it is none of :class:`TopologyPolicy`"""
    return _word(names.NEAR_POLICY, extra_specs, TopologyPolicy)


def parse_guest_topology(extra_specs: Mapping[str, str]) -> GuestTopology | None:
    """:raises InvalidExtraSpec: where it is none of :class:`GuestTopology`"""
    return _word(names.GUEST_TOPOLOGY, extra_specs, GuestTopology)


def _alone(
    key: str, extra_specs: Mapping[str, str], what: str, beside: str
) -> exception.InvalidExtraSpec:
    """The refusal of a policy *key* about what the flavor does not say"""
    reason, allowed = f"the flavor says nothing of {what}", f"{key} beside {beside}"
    return exception.InvalidExtraSpec(key, extra_specs[key], reason, allowed)


def _word(key: str, extra_specs: Mapping[str, str], known: type[_Word]) -> _Word | None:
    text = extra_specs.get(key)
    if text is None:
        return None
    return words.parse_word(key, text, known, "it is not one of its words")
