# SPDX-License-Identifier: Apache-2.0
"""The scheduler weigher, which gives the best host for a request the largest weight.

::

    [filter_scheduler]
    weight_classes = nova.scheduler.weights.all_weighers,nova_gpu.scheduler.weights.GPUWeigher
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nova import objects
from nova.scheduler import utils, weights
from nova.scheduler.host_manager import HostState

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor.placement_policy import Distribution
from nova_gpu.core.flavor.request import GPURequest, VGPURequest
from nova_gpu.core.scheduling import fit, rank
from nova_gpu.core.scheduling.rank import Rank
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import host_reports, multi_create, recent_choices, requested_gpus
from nova_gpu.scheduler.recent_choices import Taken

# For an instance without GPUs, the weight of a host with GPUs of which none is free. The weight of
# a host without GPUs is 1.
_NO_FREE_GPU = 0.5


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
        if request is None:
            return _multiplied(hosts, without_gpus(hosts), "gpu_host_weight_multiplier")
        taken = self._taken(request, weight_properties)
        raw = (
            with_gpus(hosts, request, taken)
            if isinstance(request, GPURequest)
            else with_vgpus(hosts, request, taken)
        )
        multiplied = _multiplied(hosts, raw, "gpu_weight_multiplier")
        self._note(weighed_obj_list, multiplied, request, weight_properties)
        return multiplied

    def _taken(self, request: GPURequest | VGPURequest, spec: objects.RequestSpec) -> Taken:
        # For an instance of a server group Nova's own weighers decide.
        if "instance_group" in spec and spec.instance_group:
            return recent_choices.NOTHING
        return self._choices.taken(request.resource_class, one=not multi_create.has(spec))

    def _note(
        self,
        weighed: Sequence[Any],
        multiplied: Sequence[float],
        request: GPURequest | VGPURequest,
        spec: objects.RequestSpec,
    ) -> None:
        """Record the choice of the host that has the largest weight after this weigher.

        A weigher that runs later may change Nova's choice; the record is then wrong.
        """
        # Each of *weighed* has the sum of the weights of the weighers before.
        totals = [pair.weight + weight for pair, weight in zip(weighed, multiplied, strict=True)]
        best = weighed[totals.index(max(totals))].obj
        if "instance_uuid" in spec and (report := _report(best)):
            uuid = spec.instance_uuid
            self._choices.add(uuid, best, report, request.resource_class, request.count)

    def _weigh_object(self, host_state: HostState, request_spec: objects.RequestSpec) -> float:
        raise NotImplementedError("hosts are ranked against each other, not weighed one by one")


def with_gpus(
    hosts: Sequence[HostState], request: GPURequest, taken: Taken = recent_choices.NOTHING
) -> list[float]:
    """Return the weights of *hosts* for a request for whole cards, from 1 (best) to 0 (worst).

    Hosts are ranked by :func:`nova_gpu.core.scheduling.rank.rank`; the steps between ranks are
    equal. A host without a valid report has the weight 0.
    """
    distribution = request.arrangement.distribution or Distribution(CONF.gpu.distribution)
    ranks: list[Rank | None] = []
    # By id() of the report, which the value refers to, so that its id() stays valid.
    known: dict[int, tuple[Report, Rank]] = {}
    last = multi_create.last_host(hosts)
    spread = distribution is Distribution.SPREAD
    as_reported = not (spread or last or taken)
    for place, host in enumerate(hosts):
        report = _report(host)
        if report is None:
            ranks.append(None)
            continue
        if id(report) not in known:
            known[id(report)] = (report, rank.rank(request, report, distribution))
        _, best = known[id(report)]
        if as_reported:
            ranks.append(best)
            continue
        before, unreported = multi_create.on(host) if last else 0, taken.of(host, report)
        room = report.free_gpus - max(before * request.count, unreported)
        # If later instances of this request went to another host, Placement has refused this one,
        # because other requests took the rest.
        refused = before and host is not last and not spread
        full = _full(best[0], refused or room < request.count)
        # Packing puts as many instances of one request on a host as it has room for. Otherwise each
        # would go to another host, and concurrent requests would lose their claims to each other.
        # When spreading, the number of instances distinguishes equal hosts until their next report.
        more = (0, host.num_instances) if spread else (-before, 0)
        ranks.append((full, *best[1:], more[0], *taken.turn(unreported, place), more[1]))
    return _in_steps(ranks)


def with_vgpus(
    hosts: Sequence[HostState], request: VGPURequest, taken: Taken = recent_choices.NOTHING
) -> list[float]:
    """Return the weights of *hosts* for a request for vGPUs, from 1 (best) to 0 (worst).

    Hosts are ranked by the number of vGPUs of the requested type that they have room for, the
    smallest first; the largest first if ``[gpu]distribution`` is ``spread``. The steps between
    ranks are equal.
    """
    spread = Distribution(CONF.gpu.distribution) is Distribution.SPREAD
    ranks: list[Rank | None] = []
    for place, host in enumerate(hosts):
        report = _report(host)
        free = 0 if report is None else fit.most_free(request, report.divided)
        unreported = 0 if report is None else taken.of(host, report)
        # A full host is only ranked last, because its report may be old; the claim decides.
        full = _full(free < request.count, free < unreported + request.count)
        left, instances = (-free, host.num_instances) if spread else (free, 0)
        ranks.append((full, left, *taken.turn(unreported, place), instances))
    return _in_steps(ranks)


def _full(reported: int, assumed: int) -> int:
    """Return the first number of a rank: 2 for a host that is full, 1 for one assumed to be full.

    Return 0 for any other host. An instance for which this process chose a host may have started on
    another one, so a host that is only assumed to be full is better than one that reports it.

    :param reported: true (not 0) if the host is full by its report
    :param assumed: true (not 0) if it is full by recent choices
    """
    return 2 if reported else int(bool(assumed))


def _in_steps(ranks: Sequence[Rank | None]) -> list[float]:
    order = sorted({order for order in ranks if order is not None})
    steps = len(order) - 1 if None not in ranks else len(order)
    weight_by_rank = {item: 1 - n / steps if steps else 1.0 for n, item in enumerate(order)}
    return [0.0 if order is None else weight_by_rank[order] for order in ranks]


def without_gpus(hosts: Sequence[HostState]) -> list[float]:
    """Return the weights of *hosts* for an instance without GPUs.

    The weight is 1 for a host without GPUs, 1/2 for a host whose GPUs are all in use, and 0 for the
    host with the most free GPUs. A card that is given in parts counts as free while it has room.
    """
    reports = [_report(host) for host in hosts]
    most = max((report.free_cards for report in reports if report), default=0)
    return [
        _NO_FREE_GPU * (1 - report.free_cards / most if most else 1)
        if report and report.cards
        else 1.0
        for report in reports
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
