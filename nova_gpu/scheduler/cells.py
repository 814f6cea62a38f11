# SPDX-License-Identifier: Apache-2.0
"""Guests with cells on NUMA nodes: which hosts can put cells and GPUs on the same nodes.

Nova's ``NUMATopologyFilter`` passes hosts on which the cells fit. The compute host decides later on
which nodes they are (nova.virt.hardware.numa_fit_instance_to_host).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.scheduler.host_manager import HostState
from nova.virt import hardware
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.exception import Reason
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.scheduling import fit, no_valid_host, rank
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Affinity, Counts, Policy, Sockets
from nova_gpu.scheduler import host_reports, multi_create, placement
from nova_gpu.scheduler.recent_choices import Choice

LOG = logging.getLogger(__name__)

# Each host costs several requests to Placement.
_MOST_HOSTS = 10
# Of the nodes that cells could be on: a host with 24 nodes has 735471 sets of 8.
_MOST_PLACES = 200
# The distance on a host that has too few GPUs where the policy allows them
_NONE = 2
# Nova 34 has another parameter, for PCI devices.
_NO_PCI: Mapping[str, None] = {
    name: None
    for name in inspect.signature(hardware.numa_fit_instance_to_host).parameters
    if name == "provider_mapping"
}


@dataclasses.dataclass(frozen=True, slots=True)
class GuestCells:
    """The cells of a guest that asks for whole GPUs, and the policy of these."""

    topology: objects.InstanceNUMATopology
    policy: Policy
    request: GPURequest

    def why_not(self, host: HostState) -> str | None:
        """Return why *host* cannot put GPUs and cells together, even if all GPUs were free.

        Return ``None`` if it can, or if that is unknown. The cells must fit there now.
        """
        report = host_reports.report(host)
        if report is None or self._fits(host, report, self.policy, free=False):
            return None
        return self.impossible([host]).log_text

    def distance(self, host: HostState, report: Report, sent: Iterable[Choice] = ()) -> int:
        """Return how far from its cells a guest's GPUs would be, by those free in *report*.

        0: on the same nodes, 1: where the policy allows them, or unknown, 2: it has none there.

        :param sent: the instances that the host has not claimed for yet, which come before it
        """
        host = multi_create.as_read(host)
        for other in sent:
            host, report = _after(host, report, other)
        is_known = report.nodes is not None and host.numa_topology is not None
        if is_known and self._fits(host, report, Policy.REQUIRED, free=True):
            return 0
        return 1 if self._fits(host, report, self.policy, free=True) else _NONE

    def impossible(self, hosts: Iterable[HostState]) -> Reason:
        """Return the reason that :meth:`why_not` has for each of *hosts*, for all of them."""
        most, _ = self._best(hosts, free=False)
        return self._reason(most)

    def shortage(self, hosts: Sequence[HostState]) -> Reason | None:
        """Return why none of *hosts* has enough GPUs free on the nodes that its cells could be on.

        Return ``None`` if one may have: reports may be old, so Placement must count no more free
        GPUs than they do.
        """
        if len(hosts) > _MOST_HOSTS:
            return None
        context = nova_context.get_admin_context()
        try:
            for host in hosts:
                report = host_reports.report(host)
                if report is None or self.distance(host, report) < _NONE:
                    return None
                for part in self.request.groups:
                    there = placement.offers_of_host(context, self.request, part, host.uuid)
                    free = sum(offer.free for offer in there.values())
                    if free > fit.free(report, self.request, part):
                        return None
        except exception.PlacementFailed as error:
            LOG.warning("Cannot tell whether GPUs are free on the NUMA node of cells: %s", error)
            return None
        return self._reason(*self._best(hosts, free=True))

    def _reason(self, most: int, free: Counts | None = None) -> Reason:
        return no_valid_host.apart(self.request, len(self.topology.cells), self.policy, most, free)

    def _best(self, hosts: Iterable[HostState], *, free: bool) -> tuple[int, Counts]:
        """Return the most GPUs that so many cells could reach on a host, and the GPUs there."""
        best: tuple[int, Counts] = 0, {}
        for host in hosts:
            report = host_reports.report(host)
            if report is None or host.numa_topology is None:
                continue
            nodes, sockets = _nodes(host)
            for counts in filter(None, map(report.on_nodes, range(len(report.host.groups)))):
                there = counts[free]
                cells = len(self.topology.cells)
                most = affinity.most(self.policy, sockets, there, nodes, cells)
                best = max(best, (most, there), key=lambda pair: pair[0])
        return best

    def _fits(self, host: HostState, report: Report, policy: Policy, *, free: bool) -> bool:
        if host.numa_topology is None or report.nodes is None:
            return True
        nodes, sockets = _nodes(host)
        groups = [
            [
                counts[free]
                for number, group in enumerate(report.host.groups)
                if fit.serves(group, self.request, part) and (counts := report.on_nodes(number))
            ]
            for part in self.request.groups
        ]
        cells = len(self.topology.cells)
        able = [node for node in nodes if cells == 1 or self._takes_one(host, node)]
        places = itertools.combinations(able, cells)
        for chosen in itertools.islice(places, _MOST_PLACES):
            place = Affinity(policy, frozenset(chosen), sockets)
            has_gpus = all(
                any(place.room(counts) >= part.count for counts in of_part)
                for part, of_part in zip(self.request.groups, groups, strict=True)
            )
            if has_gpus and _fit(host, self.topology, place.cells):
                return True
        return next(places, None) is not None  # unknown: the claim decides

    def _takes_one(self, host: HostState, node: int) -> bool:
        """Return whether one of the cells fits on *node*: to try all orders of them takes long."""
        for cell in self.topology.cells:
            one = self.topology.obj_clone()
            one.cells = [cell]
            if _fit(host, one, {node}):
                return True
        return False


def wanted(spec: objects.RequestSpec, request: GPURequest) -> GuestCells | None:
    """Return the cells that *spec* asks for; ``None`` without cells, or if Nova refuses them."""
    topology = spec.numa_topology if "numa_topology" in spec else None
    if not topology or not topology.cells:
        return None
    try:
        image = spec.image or objects.ImageMeta.from_dict({})
        stated = hardware.get_pci_numa_policy_constraint(spec.flavor, image)
    except nova_exception.Invalid:  # as the API does
        return None
    return GuestCells(topology, affinity.policy(stated, CONF.gpu.pci_numa_affinity_policy), request)


def _nodes(host: HostState) -> tuple[Sequence[int], Sockets]:
    """Return the NUMA nodes of *host*, and their sockets."""
    cells = host.numa_topology.cells
    sockets = {cell.id: cell.socket if "socket" in cell else None for cell in cells}
    return tuple(sockets), sockets


def _fit(host: HostState, topology: objects.InstanceNUMATopology, nodes: Collection[int]) -> bool:
    """Return whether the cells of *topology* fit on these *nodes* of *host* now."""
    chosen = [cell for cell in host.numa_topology.cells if cell.id in nodes]
    return _fitted(host, topology, chosen) is not None


def _fitted(
    host: HostState,
    topology: objects.InstanceNUMATopology,
    cells: Sequence[objects.NUMACell],
) -> objects.InstanceNUMATopology | None:
    """Return the cells of *topology* as the host's claim would put them on these of its *cells*."""
    return hardware.numa_fit_instance_to_host(
        objects.NUMATopology(cells=cells),
        topology.obj_clone(),  # Nova writes into it
        limits=host.limits.get("numa_topology"),
        **_NO_PCI,
    )


def _after(host: HostState, report: Report, sent: Choice) -> tuple[HostState, Report]:
    """Return *host* and *report* as they will be once the host has claimed for *sent*.

    Nova puts a cell on the node with the most room, not on the one with the fewest GPUs. Where it
    puts several is not predicted: an image may ask for many, of which Nova tries all orders.
    """
    fitted = None
    if sent.cells and len(sent.cells.cells) == 1 and host.numa_topology:
        fitted = _fitted(host, sent.cells, host.numa_topology.cells)
    if fitted is None:
        return host, rank.left(report, sent.request)
    then = copy.copy(host)
    then.numa_topology = hardware.numa_usage_from_instance_numa(host.numa_topology, fitted)
    return then, rank.left(report, sent.request, frozenset(cell.id for cell in fitted.cells))
