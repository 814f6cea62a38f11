# SPDX-License-Identifier: Apache-2.0
"""The report of a host's GPUs in ComputeNode.stats, as one string of JSON.

::

    {"v": 2, "hypervisor": "LXC", "groups": [{"product": "10de:1091", "architecture": "fermi",
     "mode": "lxc", "total": 8, "model": "Tesla M2090", "memory_mib": 5301,
     "islands": {"numa": 4, "nvlink": 1}}], "free": [[[-1, 0, -1, -1, 4], [-1, 1, -1, -1, 3]]],
     "reserved_per_free_gpu": {"vcpus": 2, "memory_mib": 4096},
     "divided": {"total": 2, "free": 1, "vgpus": [["nvidia-63", "GRID P4-1Q", 8]],
      "facts": [[1024, 4]]}}

``groups`` is static: what there is. ``free`` is what no instance had at the end of the last period,
for each group as :func:`nova_gpu.core.topology.topology.cells` has it; there is nothing to refuse a
host for in it. ``divided`` is the same for the cards that are given in parts: how many there are,
how many of them have room for a vGPU of any type, and how many of each type there can be more. It
is left out where there is none. What is not known is null. Hosts that have the same report the
same.

On a board with NVSwitches guests get exact sets of cards. Its group then has the sizes of those
(``"partitions": [1, 2, 4, 8]``), and for each group there is how many guests of each size there
could be more (``"free_partitions": [[[1, 4], [2, 2], [4, 1]]]``). For types of vGPUs that are all
of a card ``divided`` has it for all sizes (``"sets": [[[1, 4], [2, 2], [4, 1], [8, 0]]]``, empty
for any other type).

Where Nova's own passthrough has free devices near free GPUs, ``near`` says for each group how
many of its free GPUs one network function has behind its switch at most, how many one has on its
NUMA node, and the same for NVMe disks (``"near": [[2, 4, 0, 0]]``).

A reader takes what it knows and ignores the rest, so that a later release may say more
without a new version. Version 1 had of a group no more than ``total`` and what stands before it;
its hosts are read as ones whose models, memory and topology are not known.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core import exception, json_text
from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Cells, Islands

# The kinds in "near", in their order; each has two numbers.
NEAR = (Near.NIC, Near.NVME)

VERSION = 2
_READABLE = (1, VERSION)
_RESERVED = "reserved_per_free_gpu"
# What the first version did not say.
_NO_ISLANDS = {"numa": 1, "nvlink": 1}
# The number of a place at each level, and how many GPUs are there.
_CELL = len(topology.LEVELS) + 1


def _check_numbers(*numbers: Any, least: int = 0) -> None:
    """Refuse numbers that are not whole, or below *least*.

    :raises ValueError: for the first of them
    """
    for number in numbers:
        if type(number) is not int or number < least:
            raise ValueError("it must be a whole number")


@dataclasses.dataclass(frozen=True, slots=True)
class GroupStats:
    """A group of cards. Two that offer the same are equal, on whatever host."""

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
    """The GPUs of a host, in use or free."""

    hypervisor: str
    groups: tuple[GroupStats, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reserved:
    """The processors and memory that instances without GPUs leave for each free GPU."""

    vcpus: int = 0
    memory_mib: int = 0

    def __post_init__(self) -> None:
        _check_numbers(self.vcpus, self.memory_mib)

    def __bool__(self) -> bool:
        return bool(self.vcpus or self.memory_mib)


NOTHING = Reserved()


@dataclasses.dataclass(frozen=True, slots=True)
class Divided:
    """The cards that are given in parts: how many, and how many have room for a vGPU of any type.

    ``vgpus``: id and name of each type, and how many more of it there can be. ``facts``: what each
    of these has of memory in MiB and of heads; empty of a host that does not say it. ``sets``: of
    each, where guests get exact sets of cards, how many of each size there could be more; empty
    where none is given so.
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
                raise ValueError("facts and sets must have an entry for each of vgpus")
        for type_id, name, _ in self.vgpus:
            if not (isinstance(type_id, str) and isinstance(name, str | None)):
                raise TypeError("a type's id must be a string, and its name one or null")


UNDIVIDED = Divided()


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """All that a host says.

    ``free`` has the free GPUs of each of its groups, in their order, and ``free_partitions`` how
    many guests of each size could be given some of them; they are ``None`` of a host that does not
    say it.
    """

    host: HostStats
    free: tuple[Cells, ...] | None = None
    reserved_per_free_gpu: Reserved = NOTHING
    divided: Divided = UNDIVIDED
    free_partitions: tuple[tuple[tuple[int, int], ...], ...] | None = None
    near: tuple[tuple[int, ...], ...] | None = None

    def each_group(self) -> Iterator[tuple[GroupStats, Cells, tuple[tuple[int, int], ...]]]:
        """Yield each group, its free GPUs, and how many guests of each size could get some."""
        for number, group in enumerate(self.host.groups):
            yield (
                group,
                self.free[number] if self.free else (),
                self.free_partitions[number] if self.free_partitions else (),
            )

    def beside(self, number: int, near: Near) -> tuple[int, int]:
        """Return the most free GPUs near one function or disk: at its switch, on its node.

        They are those of the group of that *number*; none where the host does not say it.
        """
        at = 2 * NEAR.index(near)
        pair = self.near[number][at : at + 2] if self.near else ()
        return (pair[0], pair[1]) if len(pair) == 2 else (0, 0)

    @property
    def cards(self) -> int:
        """The number of cards, whole and in parts."""
        return sum(group.total for group in self.host.groups) + self.divided.total

    @property
    def free_cards(self) -> int:
        """The number of cards of which an instance could have one, or a part."""
        return self.free_gpus + self.divided.free

    @property
    def free_gpus(self) -> int:
        """The number of free whole cards; 0 where the host does not say it."""
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
    return json.dumps(fields, separators=(",", ":"))


def version(text: str) -> int:
    """Return the version of the report *text*: :data:`VERSION` or an older one.

    :raises InvalidStats: as :func:`loads`
    """
    loads(text)
    return int(json_text.parse(text)["v"])


def loads(text: str) -> Report:
    """Return what a host reports as *text*.

    Hosts that have the same share one ``host``.

    :raises InvalidStats: where it is not what :func:`dumps` writes, or wrote once
    """
    try:
        fields = json_text.parse(text)
        if fields["v"] not in _READABLE:
            raise ValueError(f"version {fields['v']!r} is none of {_READABLE}")
        if not isinstance(fields["hypervisor"], str):
            raise TypeError("hypervisor must be a string")
        groups = tuple(map(_group, fields["groups"]))
        return Report(
            _host(fields["hypervisor"], groups),
            _free(fields["free"], len(groups)) if "free" in fields else None,
            _reserved(fields[_RESERVED]) if _RESERVED in fields else NOTHING,
            _divided(fields["divided"]) if "divided" in fields else UNDIVIDED,
            _free_partitions(fields["free_partitions"], len(groups))
            if "free_partitions" in fields
            else None,
            _near(fields["near"], len(groups)) if "near" in fields else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise exception.InvalidStats(text, f"{type(e).__name__}: {e}") from e


def _group(fields: Mapping[str, Any]) -> GroupStats:
    """Parse a group.

    :raises ValueError, TypeError, AttributeError, KeyError: where it is not one
    """
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


# With types, as true is 1 and no number.
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
    """Clear what hosts share, as after a start."""
    _shared_group.cache_clear()
    _host.cache_clear()


def _reserved(fields: Mapping[str, Any]) -> Reserved:
    """Parse what is left for each free GPU.

    :raises ValueError, TypeError, KeyError: where it is none
    """
    return Reserved(fields["vcpus"], fields["memory_mib"])


def _divided(fields: Mapping[str, Any]) -> Divided:
    """Parse the cards that are given in parts.

    :raises ValueError, TypeError, KeyError: where it is none
    """
    vgpus = tuple((type_id, name, count) for type_id, name, count in fields["vgpus"])
    facts = tuple((memory_mib, heads) for memory_mib, heads, *_ in fields.get("facts", ()))
    sets = tuple(tuple((size, n) for size, n in entry) for entry in fields.get("sets", ()))
    return Divided(fields["total"], fields["free"], vgpus, facts, sets)


def _check_entries(name: str, entries: Sequence[Any], groups: int) -> None:
    """Refuse a list that does not have an entry for each group.

    :raises ValueError: where *entries* is not of so many groups
    """
    if len(entries) != groups:
        raise ValueError(f"{name} must have an entry for each of groups")


def _free(lists: Any, groups: int) -> tuple[Cells, ...]:
    """Parse the free GPUs of each group.

    :raises ValueError, TypeError: where it does not say that of so many groups
    """
    free = tuple(tuple(map(tuple, cells)) for cells in lists)
    _check_entries("free", free, groups)
    for cells in free:
        for cell in cells:
            if len(cell) != _CELL:
                raise ValueError("a place has a number for each level, and how many are there")
            _check_numbers(*cell, least=topology.ALONE)
            if cell[-1] < 0:
                raise ValueError("there cannot be fewer than none")
    return free


def _free_partitions(lists: Any, groups: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Parse the free partitions of each group.

    :raises ValueError, TypeError: where it does not say that of so many groups
    """
    partitions = tuple(tuple((size, count) for size, count in sets) for sets in lists)
    _check_entries("free_partitions", partitions, groups)
    for sets in partitions:
        _check_numbers(*(number for pair in sets for number in pair))
    return partitions


def _near(lists: Any, groups: int) -> tuple[tuple[int, ...], ...]:
    """Parse the free GPUs of each group near functions and disks.

    :raises ValueError, TypeError: where it does not say that of so many groups
    """
    distances = tuple(map(tuple, lists))
    _check_entries("near", distances, groups)
    for numbers in distances:
        _check_numbers(*numbers)
    return distances
