# SPDX-License-Identifier: Apache-2.0
"""The scheduler weigher: the best host first.

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
from nova_gpu.core.flavor.arrangement import Distribution
from nova_gpu.core.flavor.request import GPURequest, VGPURequest
from nova_gpu.core.scheduling import fit, rank
from nova_gpu.core.scheduling.rank import Rank
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import reported, requested, siblings

# Of a host with GPUs none of which is free, to an instance without: that of one without GPUs is 1.
_NO_FREE_GPU = 0.5


class GPUWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """To instances with GPUs a host is the better the nearer the GPUs are that it would give and
    the larger the sets that stay whole; to those without the worse the more GPUs it has free.

    Hosts that are the same to a request have the same weight, and Nova's other weighers decide.
    """

    # With these Nova takes weights as they are. They have their multiplier in them already, of
    # which there are two.
    minval = 0.0
    maxval = 1.0

    def weigh_objects(
        self, weighed_obj_list: Sequence[Any], weight_properties: objects.RequestSpec
    ) -> list[float]:
        hosts = [each.obj for each in weighed_obj_list]
        try:
            flavor = requested.from_spec(weight_properties).flavor
            whole, vgpus = flavor.whole, flavor.vgpus
        except exception.InvalidExtraSpec:  # which no filter has let pass
            return [0.0] * len(hosts)
        if whole:
            return _multiplied(hosts, with_gpus(hosts, whole), "gpu_weight_multiplier")
        if vgpus:
            return _multiplied(hosts, with_vgpus(hosts, vgpus), "gpu_weight_multiplier")
        return _multiplied(hosts, without_gpus(hosts), "gpu_host_weight_multiplier")

    def _weigh_object(self, host_state: HostState, request_spec: objects.RequestSpec) -> float:
        raise NotImplementedError("one host has no place among several")


def with_gpus(hosts: Sequence[HostState], asked: GPURequest) -> list[float]:
    """From 1, the best, in equal steps to 0, the worst. One that says nothing has 0 as well."""
    distribution = asked.arrangement.distribution or Distribution(CONF.gpu.distribution)
    ranks: list[Rank | None] = []
    # By what is reported, which stays in the value: a key is its id().
    known: dict[int, tuple[Report, Rank]] = {}
    last = siblings.last_host(hosts)
    for host in hosts:
        report = _report(host)
        if report is None:
            ranks.append(None)
            continue
        if id(report) not in known:
            known[id(report)] = (report, rank.rank(asked, report, distribution))
        _, found = known[id(report)]
        if distribution is Distribution.SPREAD:
            # What is free is told once a period. Meanwhile this tells equal hosts apart.
            found = (*found, host.num_instances)
        elif before := siblings.on(host):
            # As many of them as it has room for: else each would go to another host, and of
            # several such requests all would lose their claims to each other. Where they have gone
            # on to another one, Placement has refused it: somebody else had the rest.
            full = host is not last or report.free_gpus < (before + 1) * asked.count
            found = (max(found[0], int(full)), *found[1:], -before)
        else:
            found = (*found, 0)
        ranks.append(found)
    return _in_steps(ranks)


def with_vgpus(hosts: Sequence[HostState], asked: VGPURequest) -> list[float]:
    """The weight for vGPUs: how many more of the requested type the host has room for."""
    spread = Distribution(CONF.gpu.distribution) is Distribution.SPREAD
    ranks: list[Rank | None] = []
    for host in hosts:
        report = _report(host)
        free = 0 if report is None else fit.most_free(asked, report.divided)
        # Of what is not free the claim is the judge: it may be so in this period only.
        full = int(free < asked.count)
        ranks.append((full, *((-free, host.num_instances) if spread else (free,))))
    return _in_steps(ranks)


def _in_steps(ranks: Sequence[Rank | None]) -> list[float]:
    order = sorted({each for each in ranks if each is not None})
    steps = len(order) - 1 if None not in ranks else len(order)
    weight_by_rank = {each: 1 - n / steps if steps else 1.0 for n, each in enumerate(order)}
    return [0.0 if each is None else weight_by_rank[each] for each in ranks]


def without_gpus(hosts: Sequence[HostState]) -> list[float]:
    """1 of a host without GPUs, 1/2 of one that has none free, and 0 of the one with most. A card
    that is given in parts is free while there is room for one."""
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
        return reported.report(host)
    except exception.InvalidStats:
        return None


def _multiplied(hosts: Sequence[HostState], raw_weights: Sequence[float], name: str) -> list[float]:
    default = getattr(CONF.gpu, name)
    return [
        weight and weight * utils.get_weight_multiplier(host, name, default)
        for host, weight in zip(hosts, raw_weights, strict=True)
    ]
