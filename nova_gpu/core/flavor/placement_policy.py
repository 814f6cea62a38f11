# SPDX-License-Identifier: Apache-2.0
"""The arrangement that a flavor requests for its GPUs: within a host, and over hosts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import parsers


class Topology(enum.StrEnum):
    """The island that all GPUs of one request group must share: a NUMA node, or direct links."""

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"


class TopologyPolicy(enum.StrEnum):
    """The values of ``gpu:topology_policy``: whether the topology is required or preferred."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Near(enum.StrEnum):
    """The values of ``gpu:near``: the PCI devices of the instance that its GPUs must be near."""

    ANY = "any"
    NIC = "nic"
    NVME = "nvme"


class PeerAccess(enum.StrEnum):
    """Whether the driver in a KVM guest lets the GPUs access each other's memory."""

    NONE = "none"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Distribution(enum.StrEnum):
    """Whether instances use as few hosts with GPUs as possible (pack), or many (spread)."""

    PACK = "pack"
    SPREAD = "spread"


class GuestTopology(enum.StrEnum):
    """Whether a KVM guest sees the host's PCI Express tree and NUMA nodes of its GPUs."""

    AUTO = "auto"
    REQUIRED = "required"
    FLAT = "flat"


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement that one flavor requests for its GPUs.

    ``distribution`` is ``None`` where the flavor leaves it to ``[gpu]distribution``.
    """

    topology: Topology = Topology.ANY
    policy: TopologyPolicy = TopologyPolicy.REQUIRED
    distribution: Distribution | None = None
    near: Near = Near.ANY
    near_policy: TopologyPolicy = TopologyPolicy.PREFERRED
    peer_access: PeerAccess = PeerAccess.NONE

    def required(self, count: int) -> Topology:
        """Return the topology that *count* GPUs of one request group must share.

        A single GPU always shares it.
        """
        insists = self.policy is TopologyPolicy.REQUIRED and count > 1
        return self.topology if insists else Topology.ANY

    @property
    def insists_on_near(self) -> bool:
        """Whether an instance is refused if its GPUs cannot be near its functions or disks."""
        return self.near is not Near.ANY and self.near_policy is TopologyPolicy.REQUIRED

    def insists_on_peers(self, count: int) -> bool:
        """Return whether *count* GPUs of one request group must have access to each other's memory.

        A single GPU has no peer, so the answer is ``False``.
        """
        return self.peer_access is PeerAccess.REQUIRED and count > 1


ANY = Arrangement()


def parse(extra_specs: Mapping[str, str]) -> Arrangement:
    """Return the arrangement that a flavor requests.

    :raises InvalidExtraSpec: if a value is not allowed, if a policy comes without the extra spec
        that it qualifies, or if a guest that hides its hypervisor asks for peer access
    """
    policy = parsers.stated(names.TOPOLOGY_POLICY, extra_specs, TopologyPolicy)
    near_policy = parsers.stated(names.NEAR_POLICY, extra_specs, TopologyPolicy)
    if policy and names.TOPOLOGY not in extra_specs:
        raise _alone(names.TOPOLOGY_POLICY, extra_specs, "the topology", names.TOPOLOGY)
    if near_policy and names.NEAR not in extra_specs:
        what = "the devices that GPUs are to be near"
        raise _alone(names.NEAR_POLICY, extra_specs, what, names.NEAR)
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
            f"the GPUs' driver obeys it only if it sees that it runs in a guest, which {hidden} "
            "hides",
            f"{PeerAccess.NONE}, or any value without {hidden}",
        )
    return policy


def _alone(
    key: str, extra_specs: Mapping[str, str], what: str, key_of_what: str
) -> exception.InvalidExtraSpec:
    """Return the error for a policy *key* without the extra spec that it qualifies."""
    reason, allowed = f"the flavor says nothing of {what}", f"{key} together with {key_of_what}"
    return exception.InvalidExtraSpec(key, extra_specs[key], reason, allowed)
