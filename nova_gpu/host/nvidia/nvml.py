# SPDX-License-Identifier: Apache-2.0
"""Facts about NVIDIA cards from NVIDIA's management library (NVML).

A process of its own calls the library, the probe: :mod:`nova_gpu.host.nvidia.nvml_probe`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import logging
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from nova_gpu.core import exception, model
from nova_gpu.core.health_verdict import NvmlHealth
from nova_gpu.core.model import MIGInstance
from nova_gpu.host import child_process, products

LOG = logging.getLogger(__name__)

_Fact = TypeVar("_Fact")

# The driver whose cards NVML sees
DRIVER = "nvidia"

# nvml.h: NVML_DEVICE_ARCH_*, in the words of the product table
_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
# nvml.h: NVML_NVLINK_DEVICE_TYPE_*
_PEER_IS_GPU = 0
_PEER_IS_SWITCH = 2
_MOST_LINKS = 72  # twice NVML_NVLINK_MAX_LINKS of today
# nvml.h: NVML_GPU_FABRIC_STATE_COMPLETED
FABRIC_COMPLETED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlFacts:
    """The facts about one card; ``None`` for a fact that NVML does not report.

    ``mig`` are the MIG instances of a card in MIG mode, which may be none, and ``None`` for a card
    that is not in MIG mode.
    """

    name: str | None = None
    architecture: str | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    links: tuple[model.Link, ...] = ()
    mig: tuple[MIGInstance, ...] | None = None


def query(timeout_s: float) -> Mapping[model.PciAddress, NvmlFacts]:
    """Return the facts about every card that NVML sees.

    If NVML fails, return an empty mapping and log the reason once.
    """
    try:
        return _parse(run([], timeout_s))
    except NoAnswer as error:
        report(str(error))
        return {}


def health(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, NvmlHealth]:
    """Return the health of the cards, none if NVML fails, as :func:`query` does."""
    return _of_cards((), addresses, timeout_s, NvmlHealth)


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """The utilization of a card in percent, over NVML's last sample period, and bytes of memory.

    All processes count. A value that NVML does not report is ``None``.
    """

    utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None


def usage(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, Usage]:
    """Return the usage of the cards that NVML sees, none if it fails, as :func:`query` does."""
    return _of_cards(["--usage"], addresses, timeout_s, Usage)


@dataclasses.dataclass(frozen=True, slots=True)
class Modes:
    """Whether MIG mode and error correction of memory (ECC) are on: 1 is on, 0 is off.

    ``None``: the card has no such mode, or NVML does not report it.
    """

    mig: int | None = None
    ecc: int | None = None


def modes(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, Modes]:
    """Return the modes of the cards that NVML sees, none if it fails, as :func:`query` does."""
    return _of_cards(["--modes"], addresses, timeout_s, Modes)


def modules(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, int]:
    """Return the places of cards on a board with NVSwitches, none if NVML fails."""
    answers = _of_cards(["--modules"], addresses, timeout_s, dict[str, int | None])
    numbers = {address: item.get("module") for address, item in answers.items()}
    return {address: module for address, module in numbers.items() if module is not None}


def computing(address: model.PciAddress, timeout_s: float) -> list[tuple[int, int, int]]:
    """Return the processes that compute on a card: pid, GPU instance and compute instance.

    NVIDIA's driver knows them by their contexts, whatever files they have open. The list is empty
    if NVML fails.
    """
    try:
        cards = read(run(["--computing", str(address)], timeout_s), "cards")
    except NoAnswer as error:
        report(str(error))
        return []

    def processes(card: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        return [(int(pid), int(gi), int(ci)) for pid, gi, ci in card["processes"]]

    card = cards.get(address, {"processes": ()})
    return parse_fact(address, "processes", card, processes) or []


# The errors of parsing an answer that differs from that of nvml_probe.py
_NOT_UNDERSTOOD = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    exception.InvalidPciAddress,
)
_PROBE = child_process.source(pathlib.Path(__file__).with_name("nvml_probe.py"))
# A process that is killed inside the driver ends only when the driver releases it.
_hanging: list[subprocess.Popen[bytes]] = []


class NoAnswer(Exception):
    """The reason why NVML, or the probe that calls it, gave no valid answer."""


@functools.cache
def report(reason: str) -> None:
    """Warn that NVML fails for *reason*, once, because NVML is queried every minute."""
    LOG.warning(
        "NVML does not answer about this host's NVIDIA GPUs: %s. Their memory, UUIDs, NVLinks and "
        "ECC errors are unknown. Set [gpu]nvml = false if this is intended.",
        reason,
    )


def _parse(output: bytes) -> Mapping[model.PciAddress, NvmlFacts]:
    cards = read(output, "gpus")
    bricks = {
        address: parse_fact(address, "nvlinks", card, _bricks) for address, card in cards.items()
    }
    known = {address: item for address, item in bricks.items() if item is not None}
    return {address: _facts(address, card, known) for address, card in cards.items()}


def _of_cards(
    question: Sequence[str],
    addresses: Iterable[model.PciAddress],
    timeout_s: float,
    kind: Callable[..., _Fact],
) -> Mapping[model.PciAddress, _Fact]:
    """Run the probe with *question* for *addresses*; return objects of *kind* by card."""
    wanted = [str(address) for address in addresses]
    try:
        cards = read(run([*question, *wanted], timeout_s), "cards") if wanted else {}
    except NoAnswer as error:
        report(str(error))
        return {}

    def facts(card: Mapping[str, Any]) -> _Fact:
        types = {name: str if name == "refused" else int for name in card if name != "address"}
        return kind(**{name: checked(types[name], card[name]) for name in types})

    answers = {address: parse_fact(address, "answer", cards[address], facts) for address in cards}
    return {address: answer for address, answer in answers.items() if answer is not None}


def read(output: bytes, name: str) -> Mapping[model.PciAddress, Mapping[str, Any]]:
    """Return the objects in the list *name* of the probe's output, by valid addresses.

    :raises NoAnswer: if the output is an error or invalid
    """
    try:
        answer = json.loads(output)
        if "error" in answer:
            raise NoAnswer(answer["error"])
        cards = list(answer[name])
    except _NOT_UNDERSTOOD as error:
        raise NoAnswer(f"the probe's answer cannot be understood: {error!r}") from error
    facts = {}
    for card in cards:
        try:
            facts[model.PciAddress.parse(card["address"])] = card
        except _NOT_UNDERSTOOD as error:
            _report_fact("a GPU", "address", repr(error))
    return facts


def parse_fact(
    address: model.PciAddress,
    what: str,
    card: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], _Fact],
) -> _Fact | None:
    """Return what *read* makes of the probe's *card*; if it fails, warn that *what* is unknown."""
    try:
        return read(card)
    except _NOT_UNDERSTOOD as error:
        _report_fact(f"GPU {address}", what, repr(error))
        return None


@functools.cache
def _report_fact(whose: str, what: str, reason: str) -> None:
    LOG.warning("Cannot parse NVML's %s of %s, which counts as unknown: %s", what, whose, reason)


# The NVLinks of a card, counted by place and type of the device at their other end. The place is an
# address or, for switches that are not on PCI, the fabric that they form.
_Bricks = collections.Counter[tuple[model.PciAddress | str, int]]


def _bricks(card: Mapping[str, Any]) -> _Bricks:
    links = [(_peer(peer), kind) for peer, kind in card["nvlinks"]]
    switched = sum(kind == _PEER_IS_SWITCH for _, kind in links)
    fabric = _fabric(card.get("fabric"))
    # NVML may not report the other end of each link, but still how many links lead to switches.
    more = max(checked(int, card.get("switched_links")) or 0, switched) - switched
    return collections.Counter(
        [
            *((peer or fabric, kind) for peer, kind in links if peer or kind == _PEER_IS_SWITCH),
            *[(fabric, _PEER_IS_SWITCH)] * min(more, _MOST_LINKS),
        ]
    )


def _peer(spelled: str | None) -> model.PciAddress | None:
    """Parse the address of the device at the other end of an NVLink.

    Return ``None`` for a device that is not on PCI. NVML's address of that is ``FFFFFFFF:FF:FF.0``,
    an empty text, or bytes that are not text; nccl's src/graph/xml.cc reads all three, too.
    """
    try:
        return model.PciAddress.parse(spelled or "")
    except exception.InvalidPciAddress:
        return None


def _fabric(fabric: Mapping[str, Any] | None) -> str:
    """Return a name of the fabric to which a card is connected by NVSwitches.

    Cards of a host with the same name can reach each other. It is empty for all cards that have not
    joined a fabric, because the switches of one host form one fabric then.
    """
    if fabric is None or fabric["state"] != FABRIC_COMPLETED:
        return ""
    return f"{fabric['cluster']}/{fabric['clique']}"


def _facts(
    address: model.PciAddress, card: Mapping[str, Any], bricks: Mapping[model.PciAddress, _Bricks]
) -> NvmlFacts:
    def fact(what: str, read: Callable[[Any], _Fact | None]) -> _Fact | None:
        return parse_fact(address, what, card, lambda of: read(of[what]))

    return NvmlFacts(
        name=fact("name", lambda name: products.short_name(checked(str, name))),
        architecture=fact(
            "architecture", lambda number: _ARCHITECTURES.get(checked(int, number) or 0)
        ),
        memory_mib=fact("memory", lambda memory: (checked(int, memory) or 0) // 2**20 or None),
        compute_capability=fact("compute_capability", _capability),
        uuid=fact("uuid", lambda uuid: checked(str, uuid)),
        links=_links(address, bricks) if address in bricks else (),
        mig=fact("mig", lambda mig: None if mig is None else tuple(sorted(map(_instance, mig)))),
    )


def _capability(capability: Sequence[Any] | None) -> tuple[int, int] | None:
    return (int(capability[0]), int(capability[1])) if capability else None


def _instance(instance: Mapping[str, Any]) -> MIGInstance:
    """Parse a MIG instance, whose name ends with its profile: ``NVIDIA H200 MIG 1g.18gb``."""
    name = checked(str, instance["name"]) or ""
    _, _, profile = name.rpartition(" MIG ")
    return MIGInstance(
        gpu_instance=int(instance["gpu_instance"]),
        compute_instance=int(instance["compute_instance"]),
        profile=profile if name != profile else None,
        memory_mib=checked(int, instance["memory_mib"]),
        slices=checked(int, instance["slices"]),
        uuid=checked(str, instance["uuid"]),
    )


def checked(kind: type[_Fact], value: Any) -> _Fact | None:
    """Return *value*, which must be of the type *kind*, or ``None`` if the fact is unknown.

    :raises TypeError: if it is of another type
    """
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"{value!r} is no {kind.__name__}")


def _links(
    address: model.PciAddress, bricks: Mapping[model.PciAddress, _Bricks]
) -> tuple[model.Link, ...]:
    """Return the NVLinks of a card to other cards, directly or through NVSwitches."""
    widths: collections.Counter[model.PciAddress] = collections.Counter()
    mine = bricks[address]
    for (peer, kind), width in mine.items():
        if kind == _PEER_IS_GPU and isinstance(peer, model.PciAddress):
            widths[peer] += width
    for other, theirs in bricks.items():
        if other != address:
            common = (mine & theirs).items()
            widths[other] += sum(width for (_, kind), width in common if kind == _PEER_IS_SWITCH)
    return tuple(
        model.Link(peer, model.LinkType.NVLINK, width)
        for peer, width in sorted(widths.items())
        if width
    )


def run(arguments: Sequence[str], timeout_s: float) -> bytes:
    """Run the probe and return what it printed.

    :raises NoAnswer: if it fails, does not end in time, or an earlier one hangs in the driver
    """
    _hanging[:] = [process for process in _hanging if process.poll() is None]
    if _hanging:  # in every period there would be one more that cannot be killed
        raise NoAnswer(f"an earlier probe (pid {_hanging[0].pid}) still hangs in the driver")
    try:
        return child_process.run([sys.executable, "-P", "-c", _PROBE, *arguments], timeout_s)
    except child_process.TimedOut as error:
        _hanging.append(error.process)
        raise NoAnswer(f"the probe {error} ([gpu]nvml_timeout) and was killed") from error
    except child_process.Failed as error:
        raise NoAnswer(f"the probe {error}") from error
