# SPDX-License-Identifier: Apache-2.0
"""The report of a host's GPUs in ComputeNode.stats, as one string of JSON.

::

    {"v": 2, "hypervisor": "LXC", "groups": [{"product": "10de:1091", "architecture": "fermi",
     "mode": "lxc", "total": 8, "model": "Tesla M2090", "memory_mib": 5301,
     "islands": {"numa": 4, "nvlink": 1}}], "free": [[[-1, 0, -1, -1, 4], [-1, 1, -1, -1, 3]]],
     "reserved_per_free_gpu": {"vcpus": 2, "memory_mib": 4096},
     "divided": {"total": 2, "free": 1, "vgpus": [["nvidia-63", "GRID P4-1Q", 8]],
      "facts": [[1024, 4]]}}

``groups`` is static: the GPUs that exist. ``free`` are the GPUs that no instance had at the end of
the last period, for each group as :func:`nova_gpu.core.topology.topology.cells` returns them; it
only ranks hosts, and no host is refused because of it. ``divided`` describes the cards that are
given as vGPUs: how many there are, how many have room for a vGPU of any type, and for each type how
many more fit. It is absent without such cards. Unknown values are null. Hosts with the same GPUs
report the same.

On some boards guests get exact sets of cards. Such a group then has the sizes of the sets
(``"partitions": [1, 2, 4, 8]``), and ``free_partitions`` has for each group how many more guests of
each size fit (``"free_partitions": [[[1, 4], [2, 2], [4, 1]]]``). For vGPU types that occupy a
whole card ``divided`` has the same (``"sets": [[[1, 4], [2, 2], [4, 1], [8, 0]]]``, empty for any
other type).

If devices of Nova's own passthrough are free near free GPUs, ``near`` has for each group four
numbers: the largest number of its free GPUs behind the switch of one network function, the largest
number on the NUMA node of one, and both again for NVMe disks (``"near": [[2, 4, 0, 0]]``).

``nodes`` has for each group, on each NUMA node of the host that has some of its cards, the number
of the node, how many there are and how many are free (``"nodes": [[[0, 4, 1], [1, 4, 3]]]``). The
number is -1 for cards whose node is unknown. For guests with cells on NUMA nodes.

``release`` is the version of nova-gpu that the host runs, for the upgrade check only.

A reader uses the fields it knows and ignores the rest, so that a later release may add fields
without a new version. In version 1 a group ended with ``total``; hosts that report it count as
hosts whose models, memory and topology are unknown.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core import exception, json_text
from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.affinity import Counts
from nova_gpu.core.topology.topology import Cells, Islands

# The kinds of devices in "near", in order; each has two numbers.
NEAR = (Near.NIC, Near.NVME)

VERSION = 2
_READABLE = (1, VERSION)
_RESERVED = "reserved_per_free_gpu"
# The fields that the first version lacked.
_NO_ISLANDS = {"numa": 1, "nvlink": 1}
# The number of a place at each level, and the number of GPUs there.
_CELL = len(topology.LEVELS) + 1


def _check_numbers(*numbers: Any, least: int = 0) -> None:
    """Refuse numbers that are not integers, or are below *least*."""
    for number in numbers:
        if type(number) is not int or number < least:
            raise ValueError(f"{number!r} is not a whole number of at least {least}")


@dataclasses.dataclass(frozen=True, slots=True)
class GroupStats:
    """The cards of one product that a host gives whole, in use or free.

    ``total`` is their number, ``mode`` a :class:`nova_gpu.core.model.DeliveryMode`. ``partitions``
    are the sizes of the sets that guests get, empty for cards that are given one by one.
    """

    product: str
    architecture: str | None
    mode: str
    total: int
    model: str | None = None
    memory_mib: int | None = None
    islands: Islands = topology.UNKNOWN
    partitions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.product, str) and isinstance(self.mode, str)):
            raise TypeError("product and mode must be strings")
        for text in (self.architecture, self.model):
            if not (text is None or isinstance(text, str)):
                raise TypeError("architecture and model must be strings or null")
        memory_mib = 0 if self.memory_mib is None else self.memory_mib
        _check_numbers(self.total, self.islands.numa, self.islands.nvlink, memory_mib)
        _check_numbers(*self.partitions, least=1)

    def __str__(self) -> str:
        architecture = self.architecture or "unknown"
        sizes = f", in sets of {', '.join(map(str, self.partitions))}" if self.partitions else ""
        return f"{self.total} {architecture} ({self.model or self.product}, {self.mode}{sizes})"


@dataclasses.dataclass(frozen=True, slots=True)
class HostStats:
    """The whole cards of a host, in use or free: the part of its report that is static."""

    hypervisor: str
    groups: tuple[GroupStats, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reserved:
    """The vCPUs and memory of a host that instances without GPUs must leave for each free GPU."""

    vcpus: int = 0
    memory_mib: int = 0

    def __post_init__(self) -> None:
        _check_numbers(self.vcpus, self.memory_mib)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.memory_mib)


NOTHING = Reserved()


@dataclasses.dataclass(frozen=True, slots=True)
class Divided:
    """A host's cards that are given as vGPUs.

    ``total`` is their number, ``free`` the number of those with room for a vGPU of some type.
    ``vgpus`` has for each type its id, its name and how many more fit. ``facts`` and ``sets`` have
    one entry for each type too, in the same order. An entry of ``facts`` is memory in MiB and
    number of heads; ``facts`` is empty if the host does not report it. An entry of ``sets`` has
    pairs of a set's size and how many more guests of that size fit, none for a type that is not
    given in exact sets of cards; ``sets`` is empty without such types.
    """

    total: int = 0
    free: int = 0
    vgpus: tuple[tuple[str, str | None, int], ...] = ()
    facts: tuple[tuple[int | None, int | None], ...] = ()
    sets: tuple[tuple[tuple[int, int], ...], ...] = ()

    def __post_init__(self) -> None:
        _check_numbers(self.total, self.free, *(count for *_, count in self.vgpus))
        _check_numbers(*(fact for facts in self.facts for fact in facts if fact is not None))
        _check_numbers(*(number for sets in self.sets for pair in sets for number in pair))
        for table in (self.facts, self.sets):
            if table and len(table) != len(self.vgpus):
                raise ValueError("facts and sets must have an entry for each type in vgpus")
        for type_id, name, _ in self.vgpus:
            if not (isinstance(type_id, str) and isinstance(name, str | None)):
                raise TypeError("a type's id must be a string, and its name a string or null")


UNDIVIDED = Divided()


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The content of a host's report of its GPUs, parsed.

    ``free`` has for each group of ``host`` its free GPUs, and ``free_partitions`` its pairs of a
    set's size and how many more guests of that size fit. Both are ``None`` if the host does not
    report them. ``near`` has the numbers that :meth:`beside` returns. ``nodes`` has for each group
    the number of a NUMA node, how many of its cards are there, and how many of these are free.
    ``release`` is the version of nova-gpu, ``None`` of a release that does not report it.
    """

    host: HostStats
    free: tuple[Cells, ...] | None = None
    reserved_per_free_gpu: Reserved = NOTHING
    divided: Divided = UNDIVIDED
    free_partitions: tuple[tuple[tuple[int, int], ...], ...] | None = None
    near: tuple[tuple[int, ...], ...] | None = None
    release: str | None = None
    nodes: tuple[tuple[tuple[int, int, int], ...], ...] | None = None

    def each_group(self) -> Iterator[tuple[GroupStats, Cells, tuple[tuple[int, int], ...]]]:
        """Yield each group, its free GPUs, and its pairs in ``free_partitions``.

        The last two are empty if the host does not report them.
        """
        for number, group in enumerate(self.host.groups):
            yield (
                group,
                self.free[number] if self.free else (),
                self.free_partitions[number] if self.free_partitions else (),
            )

    def beside(self, number: int, near: Near) -> tuple[int, int]:
        """Return how many free GPUs can be near one device of the kind *near*.

        The first number is that behind the device's switch, the second that on its NUMA node. The
        GPUs are those of the group at index *number*. Both are 0 if the host does not report it.
        """
        at = 2 * NEAR.index(near)
        pair = self.near[number][at : at + 2] if self.near else ()
        return (pair[0], pair[1]) if len(pair) == 2 else (0, 0)

    def on_nodes(self, number: int) -> tuple[Counts, Counts] | None:
        """Return how many GPUs of the group at index *number* are on each NUMA node, and free.

        Return ``None`` if the host does not report it.
        """
        if self.nodes is None:
            return None
        numbered = [
            (None if node == topology.ALONE else node, total, free)
            for node, total, free in self.nodes[number]
        ]
        return {node: total for node, total, _ in numbered}, {node: n for node, _, n in numbered}

    @property
    def cards(self) -> int:
        """The number of cards, in use or free, given whole or in parts."""
        return sum(group.total for group in self.host.groups) + self.divided.total

    @property
    def free_cards(self) -> int:
        """The number of cards that are free, or have room for another vGPU."""
        return self.free_gpus + self.divided.free

    @property
    def free_gpus(self) -> int:
        """The number of free whole cards; 0 if the host does not report it."""
        return sum(count for cells in self.free or () for *_, count in cells)


def dumps(report: Report) -> str:
    fields: dict[str, Any] = {"v": VERSION} | dataclasses.asdict(report.host)
    for group in fields["groups"]:
        if not group["partitions"]:
            del group["partitions"]
    if report.free is not None:
        fields["free"] = report.free
    if report.reserved_per_free_gpu:
        fields[_RESERVED] = dataclasses.asdict(report.reserved_per_free_gpu)
    if report.divided != UNDIVIDED:
        fields["divided"] = dataclasses.asdict(report.divided)
        if not report.divided.sets:
            del fields["divided"]["sets"]
    if report.free_partitions is not None:
        fields["free_partitions"] = report.free_partitions
    if report.near is not None:
        fields["near"] = report.near
    if report.nodes is not None:
        fields["nodes"] = report.nodes
    if report.release is not None:
        fields["release"] = report.release
    return json.dumps(fields, separators=(",", ":"))


def version(text: str) -> int:
    """Return the number of the format of *text*, :data:`VERSION` or an older one."""
    loads(text)
    return int(json_text.parse(text)["v"])


def loads(text: str) -> Report:
    """Parse the report *text* of a host.

    Reports of hosts with the same GPUs share one ``host`` object.

    :raises InvalidStats: if *text* is not a report, or its version is unknown
    """
    try:
        fields = json_text.parse(text)
        if fields["v"] not in _READABLE:
            raise ValueError(f"version {fields['v']!r} is not one of {_READABLE}")
        if not isinstance(fields["hypervisor"], str):
            raise TypeError("hypervisor must be a string")
        groups = tuple(map(_group, fields["groups"]))
        return Report(
            _host(fields["hypervisor"], groups),
            _free(fields["free"], len(groups)) if "free" in fields else None,
            Reserved(fields[_RESERVED]["vcpus"], fields[_RESERVED]["memory_mib"])
            if _RESERVED in fields
            else NOTHING,
            _divided(fields["divided"]) if "divided" in fields else UNDIVIDED,
            _free_partitions(fields["free_partitions"], len(groups))
            if "free_partitions" in fields
            else None,
            _near(fields["near"], len(groups)) if "near" in fields else None,
            None if fields.get("release") is None else str(fields["release"]),
            _nodes(fields["nodes"], len(groups)) if "nodes" in fields else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise exception.InvalidStats(text, f"{type(e).__name__}: {e}") from e


def _group(fields: Mapping[str, Any]) -> GroupStats:
    islands = fields.get("islands", _NO_ISLANDS)
    return _shared_group(
        fields["product"],
        fields["architecture"],
        fields["mode"],
        fields["total"],
        fields.get("model"),
        fields.get("memory_mib"),
        islands["numa"],
        islands["nvlink"],
        tuple(fields.get("partitions", ())),
    )


# Types are part of the key, because true equals 1 but is not a number here.
@functools.lru_cache(maxsize=1024, typed=True)
def _shared_group(
    product: str,
    architecture: str | None,
    mode: str,
    total: int,
    model: str | None,
    memory_mib: int | None,
    numa: int,
    nvlink: int,
    partitions: tuple[int, ...],
) -> GroupStats:
    islands = Islands(numa, nvlink)
    return GroupStats(product, architecture, mode, total, model, memory_mib, islands, partitions)


@functools.lru_cache(maxsize=4096)
def _host(hypervisor: str, groups: tuple[GroupStats, ...]) -> HostStats:
    return HostStats(hypervisor, groups)


def forget() -> None:
    """Clear the caches of :func:`loads`, for tests and benchmarks."""
    _shared_group.cache_clear()
    _host.cache_clear()


def _divided(fields: Mapping[str, Any]) -> Divided:
    vgpus = tuple((type_id, name, count) for type_id, name, count in fields["vgpus"])
    facts = tuple((memory_mib, heads) for memory_mib, heads, *_ in fields.get("facts", ()))
    sets = tuple(tuple((size, n) for size, n in entry) for entry in fields.get("sets", ()))
    return Divided(fields["total"], fields["free"], vgpus, facts, sets)


def _check_entries(name: str, entries: Sequence[Any], groups: int) -> None:
    if len(entries) != groups:
        raise ValueError(f"{name} must have an entry for each group")


def _free(lists: Any, groups: int) -> tuple[Cells, ...]:
    free = tuple(tuple(map(tuple, cells)) for cells in lists)
    _check_entries("free", free, groups)
    for cells in free:
        for cell in cells:
            if len(cell) != _CELL:
                raise ValueError(f"an entry of free must have {_CELL} numbers")
            _check_numbers(*cell, least=topology.ALONE)
            if cell[-1] < 0:
                raise ValueError("the number of GPUs in an entry of free must not be negative")
    return free


def _free_partitions(lists: Any, groups: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    partitions = tuple(tuple((size, count) for size, count in sets) for sets in lists)
    _check_entries("free_partitions", partitions, groups)
    for sets in partitions:
        _check_numbers(*(number for pair in sets for number in pair))
    return partitions


def _near(lists: Any, groups: int) -> tuple[tuple[int, ...], ...]:
    distances = tuple(map(tuple, lists))
    _check_entries("near", distances, groups)
    for numbers in distances:
        _check_numbers(*numbers)
    return distances


def _nodes(lists: Any, groups: int) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    nodes = tuple(tuple((node, total, free) for node, total, free in entry) for entry in lists)
    _check_entries("nodes", nodes, groups)
    for node, total, free in itertools.chain.from_iterable(nodes):
        _check_numbers(node, least=topology.ALONE)
        _check_numbers(total, free)
    return nodes
