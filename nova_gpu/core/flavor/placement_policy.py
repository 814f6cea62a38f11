# SPDX-License-Identifier: Apache-2.0
"""Placement of an instance's GPUs: on a host, near functions or disks, and over the hosts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import parsers


class Topology(enum.StrEnum):
    """The island that all GPUs of one request group share."""

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"


class TopologyPolicy(enum.StrEnum):
    """The choice between a required and a preferred topology."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Near(enum.StrEnum):
    """The PCI devices of the instance that its GPUs must be near."""

    ANY = "any"
    NIC = "nic"
    NVME = "nvme"


class PeerAccess(enum.StrEnum):
    """The choice whether a KVM guest's driver lets the GPUs access each other's memory."""

    NONE = "none"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Distribution(enum.StrEnum):
    """The choice between as few hosts with GPUs as possible, and as many."""

    PACK = "pack"
    SPREAD = "spread"


class GuestTopology(enum.StrEnum):
    """The choice whether a KVM guest has the host's PCI Express tree and NUMA nodes of its GPUs."""

    AUTO = "auto"
    REQUIRED = "required"
    FLAT = "flat"


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement of a flavor; ``distribution`` is ``None`` where the cloud's option counts."""

    topology: Topology = Topology.ANY
    policy: TopologyPolicy = TopologyPolicy.REQUIRED
    distribution: Distribution | None = None
    near: Near = Near.ANY
    near_policy: TopologyPolicy = TopologyPolicy.PREFERRED
    peer_access: PeerAccess = PeerAccess.NONE

    def required(self, count: int) -> Topology:
        """Return what *count* GPUs of one request group must have in common.

        One is never apart.
        """
        insists = self.policy is TopologyPolicy.REQUIRED and count > 1
        return self.topology if insists else Topology.ANY

    @property
    def insists_on_near(self) -> bool:
        """Whether the instance must have GPUs that are near such a device."""
        return self.near is not Near.ANY and self.near_policy is TopologyPolicy.REQUIRED

    def insists_on_peers(self, count: int) -> bool:
        """Return whether *count* GPUs of one request group must have access to each other.

        A single GPU has no peer, so the answer is ``False``.
        """
        return self.peer_access is PeerAccess.REQUIRED and count > 1


ANY = Arrangement()


def parse(extra_specs: Mapping[str, str]) -> Arrangement:
    """Return the arrangement that a flavor asks for.

    :raises InvalidExtraSpec: for a word that is none of these, for a policy alone, and for GPUs
        that reach each other in a guest that is not to see that it is one
    """
    policy = parsers.stated(names.TOPOLOGY_POLICY, extra_specs, TopologyPolicy)
    near_policy = parsers.stated(names.NEAR_POLICY, extra_specs, TopologyPolicy)
    if policy and names.TOPOLOGY not in extra_specs:
        raise _alone(names.TOPOLOGY_POLICY, extra_specs, "the topology", names.TOPOLOGY)
    if near_policy and names.NEAR not in extra_specs:
        raise _alone(names.NEAR_POLICY, extra_specs, "what they are to be near", names.NEAR)
    return Arrangement(
        parsers.stated(names.TOPOLOGY, extra_specs, Topology) or Topology.ANY,
        policy or TopologyPolicy.REQUIRED,
        parsers.stated(names.DISTRIBUTION, extra_specs, Distribution),
        parsers.stated(names.NEAR, extra_specs, Near) or Near.ANY,
        near_policy or TopologyPolicy.PREFERRED,
        _peer_access(extra_specs),
    )


def _peer_access(extra_specs: Mapping[str, str]) -> PeerAccess:
    policy = parsers.stated(names.PEER_ACCESS, extra_specs, PeerAccess) or PeerAccess.NONE
    hidden = next((key for key in names.HIDDEN if parsers.is_true(extra_specs.get(key))), None)
    if policy is not PeerAccess.NONE and hidden is not None:
        raise exception.InvalidExtraSpec(
            names.PEER_ACCESS,
            extra_specs[names.PEER_ACCESS],
            f"the GPUs' driver goes by it only where it sees that it is in a guest, and {hidden} "
            "hides that",
            f"{PeerAccess.NONE}, or it without {hidden}",
        )
    return policy


def _alone(
    key: str, extra_specs: Mapping[str, str], what: str, key_of_what: str
) -> exception.InvalidExtraSpec:
    """Return the refusal of a policy *key* about what the flavor does not say."""
    reason, allowed = f"the flavor says nothing of {what}", f"{key} together with {key_of_what}"
    return exception.InvalidExtraSpec(key, extra_specs[key], reason, allowed)
