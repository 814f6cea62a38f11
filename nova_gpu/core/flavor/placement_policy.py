# SPDX-License-Identifier: Apache-2.0
"""The arrangement that a flavor requests for its GPUs: within a host, and over hosts."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import parsers


class Topology(enum.StrEnum):
    """The values of ``gpu:topology``: what all GPUs of one request group are to share.

    ``NUMA``: one NUMA node. ``NVLINK``: direct links (NVLink, XGMI) that join all of them.
    """

    ANY = "any"
    NUMA = "numa"
    NVLINK = "nvlink"


class TopologyPolicy(enum.StrEnum):
    """Whether an instance is refused without the topology, or the nearness, that it requests.

    These are the values of ``gpu:topology_policy`` and ``gpu:near_policy``.
    """

    REQUIRED = "required"
    PREFERRED = "preferred"


class Near(enum.StrEnum):
    """The values of ``gpu:near``: the PCI devices of an instance that its GPUs are to be near."""

    ANY = "any"
    NIC = "nic"
    NVME = "nvme"


class PeerAccess(enum.StrEnum):
    """The values of ``gpu:peer_access``: whether a KVM guest's driver learns of peer access.

    The driver lets NVIDIA's GPUs access each other's memory only if it learns that they can.
    """

    NONE = "none"
    PREFERRED = "preferred"
    REQUIRED = "required"


class Distribution(enum.StrEnum):
    """Whether instances with GPUs use as few hosts as possible (pack), or many (spread)."""

    PACK = "pack"
    SPREAD = "spread"


class GuestTopology(enum.StrEnum):
    """Whether a KVM guest sees the host's PCI Express tree and NUMA nodes of its GPUs.

    ``AUTO``: if the tree says more than a flat bus. ``REQUIRED``: always. ``FLAT``: never.
    """

    AUTO = "auto"
    REQUIRED = "required"
    FLAT = "flat"


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement that one flavor requests for its GPUs.

    ``policy`` is that of ``topology``. ``distribution`` is ``None`` if ``[gpu]distribution`` is to
    decide.
    """

    topology: Topology = Topology.ANY
    policy: TopologyPolicy = TopologyPolicy.REQUIRED
    distribution: Distribution | None = None
    near: Near = Near.ANY
    near_policy: TopologyPolicy = TopologyPolicy.PREFERRED
    peer_access: PeerAccess = PeerAccess.NONE

    def required(self, count: int) -> Topology:
        """Return the topology without which *count* GPUs of one request group are refused.

        Return ``ANY`` if the flavor requires none, or *count* is 1.
        """
        insists = self.policy is TopologyPolicy.REQUIRED and count > 1
        return self.topology if insists else Topology.ANY

    @property
    def insists_on_near(self) -> bool:
        """Whether an instance is refused if its GPUs cannot be near the devices of ``near``."""
        return self.near is not Near.ANY and self.near_policy is TopologyPolicy.REQUIRED

    def insists_on_peers(self, count: int) -> bool:
        """Return whether an instance with *count* GPUs is refused if they cannot be peers.

        Peers can access each other's memory. A single GPU has none, so the answer is ``False``.
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
        raise _alone(names.TOPOLOGY_POLICY, extra_specs, names.TOPOLOGY)
    if near_policy and names.NEAR not in extra_specs:
        raise _alone(names.NEAR_POLICY, extra_specs, names.NEAR)
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
            f"the GPUs' driver must see that it runs in a guest, which {hidden} hides",
            f"{PeerAccess.NONE}, or any value without {hidden}",
        )
    return policy


def _alone(key: str, extra_specs: Mapping[str, str], other: str) -> exception.InvalidExtraSpec:
    reason, allowed = f"the flavor does not have {other}", f"{key} together with {other}"
    return exception.InvalidExtraSpec(key, extra_specs[key], reason, allowed)
