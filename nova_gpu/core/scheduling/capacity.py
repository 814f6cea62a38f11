# SPDX-License-Identifier: Apache-2.0
"""Capacity: how many instances of a flavor could boot now, on which host, and why not more.

The count is based on Placement's inventories and usage. What only the scheduler knows (aggregates,
images, affinity) can only lower it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_gpu.core import names
from nova_gpu.core.card_sets import CardSets
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.placement import inventory
from nova_gpu.core.placement.inventory import Inventory

# If there are more combinations for one instance of several groups, only these first ones count.
_MOST_COMBINATIONS = 64
# With more states of the free GPUs on a host than this they are not all searched.
_MOST_STATES = 2000
# With more kinds of requests in a flavor the upper limit of its instances is rougher.
_MOST_KINDS = 10
# The traits by which a difference between a group and the request is described
_TOLD = {
    names.TRAIT_ARCHITECTURE: "architecture",
    names.TRAIT_HYPERVISOR: "hypervisor",
    names.TRAIT_MODEL: "model",
    names.TRAIT_VGPU_TYPE: "vGPU type",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Group(Inventory):
    """The GPUs or vGPUs of one resource provider.

    ``traits`` are the provider's. ``board`` has the sets in which guests get the cards, ``None`` if
    they get any combination.
    """

    traits: frozenset[str]
    board: CardSets | None = None

    def places(self, count: int) -> int:
        """Return how many instances with *count* GPUs each can get them from this group now."""
        if self.board is None or self.free < count:
            return self.free // count
        return min(self.free // count, self.board.room().get(count, 0))


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A compute node with GPUs, as one flavor sees it.

    :param unusable: why no new instance starts there, or ``None``
    :param candidate: whether Placement has an allocation candidate there for one instance
    :param free: the free resources of the node's own provider, by resource class
    :param kind: what the groups contain, ``GPUs`` or ``vGPUs``
    """

    name: str
    unusable: str | None
    candidate: bool
    free: Mapping[str, int]
    groups: tuple[Group, ...]
    kind: str = "GPUs"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The number of instances of a flavor that fit on a host, and the reason why not one more.

    ``free`` and ``in_service`` count the host's GPUs: those that are neither reserved nor used, and
    those that are not reserved, whether used or free.
    """

    host: str
    instances: int
    free: int
    in_service: int
    reason: str


def answers(
    requests: Sequence[GroupRequest],
    amounts: Mapping[str, int],
    hosts: Iterable[Host],
    *,
    isolate: bool = False,
) -> list[Answer]:
    """Return one answer for each host, those with the most instances first.

    :param amounts: what one instance needs of the node's own resources, by resource class
    :param isolate: whether the groups of one instance must be of different providers
    """
    rows = [_answer(requests, amounts, host, isolate) for host in hosts]
    return sorted(rows, key=lambda answer: (-answer.instances, answer.host))


def could_boot(answers: Iterable[Answer]) -> tuple[int, int]:
    """Return how many instances could boot in all, and on how many hosts."""
    able = [answer.instances for answer in answers if answer.instances]
    return sum(able), len(able)


def _answer(
    requests: Sequence[GroupRequest], amounts: Mapping[str, int], host: Host, isolate: bool
) -> Answer:
    instances, reason = _instances(requests, amounts, host, isolate)
    return Answer(
        host=host.name,
        instances=instances,
        free=sum(group.free for group in host.groups),
        in_service=sum(group.total - group.reserved for group in host.groups),
        reason=reason,
    )


def _instances(
    requests: Sequence[GroupRequest], amounts: Mapping[str, int], host: Host, isolate: bool
) -> tuple[int, str]:
    lacking = next(filter(None, (_lacking(part, host) for part in requests)), None)
    if reasons := [*filter(None, (host.unusable, lacking))]:
        return 0, "; ".join(reasons)
    # Only Placement can count what the node itself does not have, such as a disk that hosts share.
    short = {
        resource_class: host.free[resource_class] // amount
        for resource_class, amount in amounts.items()
        if amount and resource_class in host.free
    }
    scarcest = min(short, key=lambda name: short[name], default=None)
    most = short[scarcest] if scarcest else sum(group.free for group in host.groups)
    if scarcest and not most:
        return 0, _scarce(scarcest, amounts, host)
    if not host.candidate:
        return 0, (
            "Placement has no candidate here: the host lacks another trait or device of the flavor"
        )
    by_gpus, is_exact = _packed(requests, host.groups, isolate, most + 1)
    if scarcest and most < by_gpus:
        return most, _scarce(scarcest, amounts, host, most)
    if not is_exact:
        return by_gpus, f"at least so many: not all combinations of its {host.kind} were tried"
    if by_gpus:
        return by_gpus, f"no more {host.kind}"
    return 0, f"its free {host.kind} do not serve all request groups of the flavor"


def _scarce(resource_class: str, amounts: Mapping[str, int], host: Host, instances: int = 0) -> str:
    left = host.free[resource_class] - instances * amounts[resource_class]
    then = f" after {instances}" if instances else ""
    return f"{amounts[resource_class]} {resource_class} asked for, {left} free{then}"


def fits(part: GroupRequest, group: Group) -> bool:
    """Return whether *group* has the traits that *part* requests, regardless of free GPUs."""
    return part.required_traits <= group.traits and not part.forbidden_traits & group.traits


def can_hold(requests: Iterable[GroupRequest], groups: Collection[Group]) -> bool:
    """Return whether a host's *groups* have enough GPUs in service for one instance."""
    return all(
        any(fits(part, group) and group.total - group.reserved >= part.count for group in groups)
        for part in requests
    )


def combinations(
    requests: Sequence[GroupRequest], groups: Sequence[Group], *, isolate: bool = False
) -> list[tuple[int, ...]]:
    """Return the combinations of *groups* from which one instance could get its GPUs now.

    A combination has, for each request group in *requests*, the index in *groups* of the group that
    serves it. Combinations that leave the fewest GPUs free come first. Only the first
    :data:`_MOST_COMBINATIONS` are tried.
    """
    choices = []
    for way in _possible(requests, groups, isolate):
        left = [group.free for group in groups]
        for part, index in zip(requests, way, strict=True):
            left[index] -= part.count
        if all(left[index] >= 0 for index in way):
            choices.append((sum(left[index] for index in set(way)), way))
    return [way for _, way in sorted(choices)]


def _possible(
    requests: Sequence[GroupRequest], groups: Sequence[Group], isolate: bool
) -> Iterator[tuple[int, ...]]:
    """Yield the combinations of *groups* whose traits serve one instance, as :func:`ways`.

    Whether a group has enough free GPUs for several requests together is not checked, except for
    groups whose GPUs are given in exact sets.
    """
    fitting = [
        [n for n, group in enumerate(groups) if fits(part, group) and group.free >= part.count]
        for part in requests
    ]
    counts = [part.count for part in requests]
    for way in itertools.islice(itertools.product(*fitting), _MOST_COMBINATIONS):
        if not (isolate and len(set(way)) < len(way)) and _are_sets(way, counts, groups):
            yield way


def _lacking(part: GroupRequest, host: Host) -> str | None:
    """Return why no group of *host* can serve *part* now, ``None`` if one can."""
    fitting = [group for group in host.groups if fits(part, group)]
    if not fitting:
        unlike = sorted({_unlike(part, group, host.kind) for group in host.groups})
        return "; ".join(unlike) or f"it has no {host.kind}"
    if (most := max(group.total for group in fitting)) < part.count:
        return f"{part.count} {host.kind} asked for, it has {most}"
    if (most := max(group.most for group in fitting)) < part.count:
        return f"{part.count} {host.kind} asked for, one guest here has room for {most}"
    if any(group.places(part.count) for group in fitting):
        return None
    largest = max(fitting, key=lambda group: group.free)
    text = f"{part.count} {host.kind} asked for, {largest.free} of {largest.total} free"
    if largest.free >= part.count:
        return f"{text}, no free partition of {part.count}"
    if out := inventory.out_of_service(largest.total, largest.free, largest.used):
        text += f" ({out} out of service)"
    return text


def _unlike(part: GroupRequest, group: Group, kind: str) -> str:
    for prefix, noun in _TOLD.items():
        wanted = names.known_values(prefix, part.required_traits)
        if wanted and not wanted <= (there := names.known_values(prefix, group.traits)):
            return f"{noun} {', '.join(sorted(there)) or 'unknown'}, not {', '.join(wanted)}"
    lacking = sorted(part.required_traits - group.traits)
    unwanted = sorted(part.forbidden_traits & group.traits)
    texts = [f"lack {', '.join(lacking)}"] * bool(lacking)
    texts += [f"are {', '.join(unwanted)}"] * bool(unwanted)
    return f"its {kind} {' and '.join(texts)}"


def _are_sets(way: Sequence[int], counts: Sequence[int], groups: Sequence[Group]) -> bool:
    """Return whether each group in *way* that gives exact sets has a free set of the size."""
    taken = dict.fromkeys(way, 0)
    for index, count in zip(way, counts, strict=True):
        taken[index] += count
    return all(groups[index].board is None or groups[index].places(taken[index]) for index in way)


def _packed(
    requests: Sequence[GroupRequest], groups: Sequence[Group], isolate: bool, most: int
) -> tuple[int, bool]:
    """Return how many instances the GPUs of *groups* suffice for, and whether not for more.

    The number is at most *most*. It is exact if all requests are for as many GPUs, or there are
    few GPUs.
    """
    if len(requests) == 1:
        part = requests[0]
        count = sum(group.places(part.count) for group in groups if fits(part, group))
        return min(count, most), True
    limit = min(_limit(requests, groups, isolate, most), most)
    counts = {part.count for part in requests}
    if len(counts) == 1 and not any(group.board for group in groups):
        return limit, True
    possible = list(_possible(requests, groups, isolate))
    if len(possible) < _MOST_COMBINATIONS and math.prod(g.free + 1 for g in groups) < _MOST_STATES:
        return min(_searched(requests, groups, possible), limit), True
    served = 0
    while served < limit:
        # Of the ways in which most GPUs remain in whole places, the first one.
        way = next(iter(combinations(requests, groups, isolate=isolate)), None)
        if way is None:
            break
        taken = dict.fromkeys(way, 0)
        for index, part in zip(way, requests, strict=True):
            taken[index] += part.count
        groups = [
            dataclasses.replace(group, used=group.used + taken.get(n, 0))
            for n, group in enumerate(groups)
        ]
        served += 1
    return served, served == limit


def _searched(
    requests: Sequence[GroupRequest], groups: Sequence[Group], possible: Sequence[tuple[int, ...]]
) -> int:
    @functools.cache
    def best(free: tuple[int, ...]) -> int:
        best_count = 0
        for way in possible:
            left = list(free)
            for part, index in zip(requests, way, strict=True):
                left[index] -= part.count
            if min(left) >= 0:
                best_count = max(best_count, 1 + best(tuple(left)))
        return best_count

    return best(tuple(group.free for group in groups))


def _limit(
    requests: Sequence[GroupRequest], groups: Sequence[Group], isolate: bool, most: int
) -> int:
    """Return an upper limit of :func:`_packed`, which is the number itself for equal requests.

    By Hall's theorem there is a place for each request of each instance if, for each set of
    requests, the groups that serve any of these have enough places.
    """
    fitting = [
        frozenset(n for n, group in enumerate(groups) if fits(part, group)) for part in requests
    ]
    # Of the requests that the same groups serve, only all together can be short of places.
    kinds = sorted(set(fitting), key=len)[:_MOST_KINDS]
    limit = most
    for size in range(1, len(kinds) + 1):
        for chosen in itertools.combinations(kinds, size):
            reached = frozenset[int]().union(*chosen)
            parts = [part for part, of in zip(requests, fitting, strict=True) if of <= reached]
            smallest = min(part.count for part in parts)
            if all(part.count == smallest for part in parts):
                places = [groups[n].places(smallest) for n in reached]
                needed = len(parts)
            else:
                places = [groups[n].free for n in reached]
                needed = sum(part.count for part in parts)
            # An isolated instance takes at most one place of each group.
            once = isolate and needed == len(parts)
            while limit and sum(min(n, limit) if once else n for n in places) < limit * needed:
                limit -= 1
    return limit
