# SPDX-License-Identifier: Apache-2.0
"""The scheduler weigher, which gives the best host for a request the largest weight.

What makes a host better, and in which order, is :func:`nova_gpu.core.scheduling.rank.rank`.

::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,nova_gpu.scheduler.weights.GPUWeigher
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Sequence
from typing import Any

from nova import objects
from nova.scheduler import utils, weights
from nova.scheduler.host_manager import HostState

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor.placement_policy import Distribution
from nova_gpu.core.flavor.request import GPURequest, Request
from nova_gpu.core.scheduling import rank
from nova_gpu.core.scheduling.rank import Rank
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import (
    candidate_order,
    cells,
    host_reports,
    multi_create,
    recent_choices,
    requested_gpus,
)
from nova_gpu.scheduler.recent_choices import Choice, Loads, Taken

# For an instance without GPUs, the weight of a host with GPUs of which none is free. The weight of
# a host without GPUs is 1.
_NO_FREE_GPU = 0.5
# More than the sum of Nova's other weighers, of which each adds at most 1 by default. Those for
# failed builds and for moves to another cell, with a million, keep their precedence.
_OTHERS = 20.0
# The smallest step between two ranks, times the default multiplier of 1000
_LEAST_STEP = _OTHERS / 1000
# The soft policies of server groups: whether more members on a host make it better or worse.
_SOFT_POLICIES = {"soft-affinity": -1, "soft-anti-affinity": 1}


class GPUWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """The weigher of hosts with GPUs.

    For an instance with GPUs, a host is better if its GPUs are nearer to each other, and if larger
    sets of its GPUs stay free together. For an instance without GPUs, a host is worse the more free
    GPUs it has.

    Hosts that are equal for a request have the same weight, so that Nova's other weighers decide.
    In a burst of requests, hosts that this process has chosen since their last report have a lower
    weight than their equals.
    """

    # With these bounds Nova does not normalize the weights. They include their multiplier already,
    # because there are two different ones.
    minval = 0.0
    maxval = 1.0

    def __init__(self) -> None:
        super().__init__()
        self._choices = recent_choices.Choices()
        self._loads, self._needs = Loads(), Needs()

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        hosts = [host.obj for host in weighed_obj_list]
        try:
            flavor = requested_gpus.from_spec(weight_properties).flavor
            whole, vgpus = flavor.whole, flavor.vgpus
        except exception.InvalidExtraSpec:  # the filter passes no host for such a flavor
            return [0.0] * len(hosts)
        request = whole or vgpus
        policy = policy_ranks(hosts, weight_properties)
        if request is None:
            raw = without_gpus(hosts, weight_properties, self._needs, self._loads)
            multiplied = _multiplied(hosts, raw, "gpu_host_weight_multiplier")
            if policy:
                multiplied = _policy_first(multiplied, policy)
            (first, *_) = _best(weighed_obj_list, multiplied)
            self._loads.add(hosts[first], weight_properties)
            return multiplied
        if isinstance(request, GPURequest):
            self._needs.add(weight_properties, request.count)
        taken = self._taken(request, weight_properties)
        wanted = cells.wanted(weight_properties, whole) if whole else None
        raw = with_gpus(hosts, request, taken, policy, wanted.distance if wanted else None)
        multiplied = _multiplied(hosts, raw, "gpu_weight_multiplier")
        best = [hosts[place] for place in _best(weighed_obj_list, multiplied)]
        if isinstance(request, GPURequest):
            candidate_order.sort(best, request, taken)
        self._loads.add(best[0], weight_properties)
        self._note(best[0], request, weight_properties, taken)
        return multiplied

    def _taken(self, request: Request, spec: objects.RequestSpec) -> Taken:
        return Taken(self._choices, request.resource_class, spec)

    def _note(
        self, best: HostState, request: Request, spec: objects.RequestSpec, taken: Taken
    ) -> None:
        """Record the choice of the host that has the largest weight after this weigher."""
        if "instance_uuid" in spec and (report := _report(best)):
            since = taken.of(best, report)
            uuid, anothers = spec.instance_uuid, taken.is_anothers(best, report)
            cells = spec.numa_topology if "numa_topology" in spec else None
            self._choices.add(uuid, best, report, request, since, anothers=anothers, cells=cells)
            self._choices.expect(spec, best, report, request)

    def _weigh_object(self, host_state: HostState, request_spec: objects.RequestSpec) -> float:
        raise NotImplementedError("hosts are ranked against each other, not weighed one by one")


def with_gpus(
    hosts: Sequence[HostState],
    request: Request,
    taken: Taken = recent_choices.NOTHING,
    policy: Sequence[int] | None = None,
    distance: Callable[[HostState, Report, Sequence[Choice]], int] | None = None,
) -> list[float]:
    """Return the weights of *hosts* for a request for whole cards or vGPUs, 0 for the worst.

    Hosts are ranked by :func:`nova_gpu.core.scheduling.rank.rank`, with what they will have free
    after the recent choices; the steps between ranks are equal. A host without a valid report has
    the weight 0.

    :param policy: the result of :func:`policy_ranks`
    :param distance: return how far from a guest's cells the free GPUs of a host and its report are
        after the unreported choices
    """
    stated = request.arrangement.distribution if isinstance(request, GPURequest) else None
    distribution = stated or Distribution(CONF.gpu.distribution)
    spread = distribution is Distribution.SPREAD
    ranks: list[Rank | None] = []
    # By the id() of the report and of each request since, which Python keeps valid: the value
    # refers to the report, and *taken* to the requests.
    known: dict[tuple[int, ...], tuple[Report, Report, Rank, Rank]] = {}
    as_reported = not (spread or taken or policy or distance)
    for place, host in enumerate(hosts):
        report = _report(host)
        if report is None:
            ranks.append(None)
            continue
        if as_reported:
            alone = (id(report),)
            if alone not in known:
                best = rank.rank(request, report, distribution)
                known[alone] = (report, report, best, best)
            ranks.append(known[alone][2])
            continue
        since = taken.of(host, report)
        key = (id(report), *map(id, since))
        if key not in known:
            now = functools.reduce(rank.left, since, report)
            known[key] = (
                report,
                now,
                rank.rank(request, report, distribution),
                rank.rank(request, now, distribution),
            )
        _, now, reported, assumed = known[key]
        # The number of instances distinguishes equal hosts until their next report.
        # Spread requests meet on no host. And Nova calls no weigher for a single host, so that this
        # process's own choice of it may seem another's.
        if not spread:
            taken.see(host, report)
        anothers = not spread and taken.is_anothers(host, report)
        ranks.append(
            (
                _full(reported[0], multi_create.is_refused(host) or assumed[0]),
                policy[place] if policy else 0,
                distance(host, report, taken.unreported(host, report)) if distance else 0,
                anothers,
                *(rank.near_only(request, assumed) if anothers else assumed[1:]),
                *taken.turn(
                    sum(other.count for other in since),
                    place,
                    breaks_up=not spread and recent_choices.free(request, now) > request.count,
                ),
                host.num_instances if spread else 0,
            )
        )
    return _in_steps(ranks)


def _best(pairs: Sequence[Any], multiplied: Sequence[float]) -> list[int]:
    """Return the places of the hosts with the largest sums of weights, the largest first.

    Each pair has the sum of the weights of the weighers before. A weigher that runs later may
    change Nova's choice; what is done for the best hosts here is then done for others.
    """
    totals = [pair.weight + own for pair, own in zip(pairs, multiplied, strict=True)]
    return heapq.nlargest(candidate_order.TRIED, range(len(pairs)), key=totals.__getitem__)


def policy_ranks(hosts: Sequence[HostState], spec: objects.RequestSpec) -> Sequence[int] | None:
    """Return the ranks of *hosts* by the soft policy of the instance's server group.

    Lower is better. Return ``None`` if the instance has no such group. Nova's own weighers count
    the members in the same way, but have a multiplier of 1.
    """
    group = spec.instance_group if "instance_group" in spec else None
    if group is None or not (sign := _SOFT_POLICIES.get(group.policy, 0)):
        return None
    members = set(group.members)
    return [sign * len(members.intersection(host.instances)) for host in hosts]


def _full(reported: int, assumed: int) -> int:
    """Return the first number of a rank: 2 for a host that is full, 1 for one assumed to be full.

    Return 0 for any other host. An instance for which this process chose a host may have started on
    another one, so a host that is only assumed to be full is better than one that reports it.

    :param reported: true (not 0) if the host is full by its report
    :param assumed: true (not 0) if it is full by recent choices
    """
    return 2 if reported else int(bool(assumed))


def _in_steps(ranks: Sequence[Rank | None]) -> list[float]:
    """Return a weight for each rank, from 1 for the best to 0, in equal steps.

    With so many ranks that the steps would be smaller than :data:`_LEAST_STEP`, the best weight is
    larger than 1 instead.
    """
    order = sorted({order for order in ranks if order is not None}, reverse=True)
    lowest = 1 if None in ranks else 0
    steps = len(order) - 1 + lowest
    step = max(1 / steps, _LEAST_STEP) if steps else 1.0
    weight_by_rank = {item: (n + lowest) * step for n, item in enumerate(order)}
    if not steps:
        return [1.0] * len(ranks)
    return [0.0 if order is None else weight_by_rank[order] for order in ranks]


class Needs:
    """The most vCPUs and MiB for each GPU that a request to this scheduler has asked for.

    Before the first request it is unknown: then a GPU of a host may need its whole share.
    """

    def __init__(self) -> None:
        self._of_gpu: tuple[float, float] | None = None

    def add(self, spec: objects.RequestSpec, count: int) -> None:
        """Add a request for *count* GPUs."""
        vcpus, memory_mib = self._of_gpu or (0.0, 0.0)
        self._of_gpu = max(vcpus, spec.vcpus / count), max(memory_mib, spec.memory_mb / count)

    def of_card(self, cards: int, totals: Sequence[float]) -> list[float]:
        """Return what one of the *cards* of a host with *totals* needs, at most its share."""
        shares = [total / cards for total in totals]
        return list(map(min, shares, self._of_gpu)) if self._of_gpu else shares


def without_gpus(
    hosts: Sequence[HostState], spec: objects.RequestSpec, needs: Needs, loads: Loads
) -> list[float]:
    """Return the weights of *hosts* for an instance without GPUs.

    The weight is 1 for a host without GPUs. It is from 1/2 to 1/4 for a host that would have left
    what its free GPUs need, and larger the more it would have beyond that. For any other host it is
    below 1/4, and larger the fewer GPUs could be used then: so one host after another is filled,
    and the others stay whole. A card that is given in parts counts as free while it has room.
    """
    return [_without_gpus(host, spec, needs, loads.unreported(host)) for host in hosts]


def _without_gpus(
    host: HostState, spec: objects.RequestSpec, needs: Needs, unreported: tuple[int, int]
) -> float:
    report = _report(host)
    if report is None or not report.cards:
        return 1.0
    amounts = host_reports.left(host, spec, unreported)
    if any(amount.left < 0 for amount in amounts):
        return 0.0
    of_card = needs.of_card(report.cards, [amount.total for amount in amounts])
    pairs = [(amount, need) for amount, need in zip(amounts, of_card, strict=True) if need]
    surplus = min((item.left - need * report.free_cards) / item.total for item, need in pairs)
    if surplus >= 0:
        return _NO_FREE_GPU * (1 + surplus) / 2
    usable_cards = min(item.left / need for item, need in pairs)
    return _NO_FREE_GPU * (1 - usable_cards / report.cards) / 2


def _policy_first(weights: Sequence[float], policy: Sequence[int]) -> list[float]:
    """Return *weights*, raised so that hosts with a better rank in *policy* weigh more."""
    step = max(weights) - min(weights) + _OTHERS
    return [
        weight + (max(policy) - of_host) * step
        for weight, of_host in zip(weights, policy, strict=True)
    ]


def _report(host: HostState) -> Report | None:
    try:
        return host_reports.report(host)
    except exception.InvalidStats:
        return None


def _multiplied(hosts: Sequence[HostState], raw_weights: Sequence[float], name: str) -> list[float]:
    default = getattr(CONF.gpu, name)
    return [
        weight and weight * utils.get_weight_multiplier(host, name, default)
        for host, weight in zip(hosts, raw_weights, strict=True)
    ]
