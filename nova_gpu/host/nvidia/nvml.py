# SPDX-License-Identifier: Apache-2.0
"""Facts of NVIDIA's management library about the cards that the nvidia driver has.

See :mod:`nova_gpu.host.nvidia.nvml_probe` for the process that asks it.
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
from nova_gpu.host import child, products

LOG = logging.getLogger(__name__)

_Told = TypeVar("_Told")

# The driver whose cards the library knows
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
    """One card; ``None`` is what the library would not tell.

    ``minor`` is the N of /dev/nvidiaN, ``mig`` are the instances of a card that is in MIG mode.
    """

    name: str | None = None
    architecture: str | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    links: tuple[model.Link, ...] = ()
    minor: int | None = None
    mig: tuple[MIGInstance, ...] | None = None


def query(timeout_s: float) -> Mapping[model.PciAddress, NvmlFacts]:
    """Return every card the library sees, or nothing: then one log line says why.

    Raises nothing.
    """
    try:
        return _parse(run([], timeout_s))
    except NoAnswer as error:
        report(str(error))
        return {}


def health(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, NvmlHealth]:
    """Return how the cards are; as :func:`query` where the library fails."""
    return _of_cards((), addresses, timeout_s, NvmlHealth)


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """The utilization of a card, in percent of the last moments, and bytes of its memory.

    ``None`` is what the library does not report for it.
    """

    utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None


def usage(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, Usage]:
    """Return the usage of the cards that the library has.

    As :func:`query` where it fails.
    """
    return _of_cards(["--usage"], addresses, timeout_s, Usage)


@dataclasses.dataclass(frozen=True, slots=True)
class Modes:
    """The modes of a card: MIG, and correction of memory errors (ECC), 1 or 0, ``None`` without."""

    mig: int | None = None
    ecc: int | None = None


def modes(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, Modes]:
    """Return the modes of the cards that the library has.

    As :func:`query` where it fails.
    """
    return _of_cards(["--modes"], addresses, timeout_s, Modes)


def modules(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, int]:
    """Return the board modules of the cards that the library has.

    As :func:`query` where it fails.
    """
    answers = _of_cards(["--modules"], addresses, timeout_s, dict[str, int | None])
    numbers = {address: item.get("module") for address, item in answers.items()}
    return {address: module for address, module in numbers.items() if module is not None}


# What reading an answer raises that is not as nvml_probe.py says
_NOT_UNDERSTOOD = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    exception.InvalidPciAddress,
)
_PROBE = pathlib.Path(__file__).with_name("nvml_probe.py")
# A process that is killed inside of the driver ends when the driver lets go of it.
_hanging: list[subprocess.Popen[bytes]] = []


class NoAnswer(Exception):
    """The reason why the library's answer is missing."""


@functools.cache
def report(reason: str) -> None:
    """Log a reason once: the periodic task asks every minute."""
    LOG.warning(
        "NVML does not answer about this host's NVIDIA GPUs: %s. Their memory, UUIDs, NVLinks and "
        "ECC errors are unknown. Set [gpu]nvml = false if this is intended.",
        reason,
    )


def _parse(output: bytes) -> Mapping[model.PciAddress, NvmlFacts]:
    """Return the facts in what the probe printed.

    :raises NoAnswer: where it printed none
    """
    cards = read(output, "gpus")
    bricks = {address: told(address, "nvlinks", card, _bricks) for address, card in cards.items()}
    known = {address: item for address, item in bricks.items() if item is not None}
    return {address: _facts(address, card, known) for address, card in cards.items()}


def _of_cards(
    question: Sequence[str],
    addresses: Iterable[model.PciAddress],
    timeout_s: float,
    kind: Callable[..., _Told],
) -> Mapping[model.PciAddress, _Told]:
    """Return the library's answers about the cards that it has.

    As :func:`query` where it fails. Of no cards it is not asked.
    """
    wanted = [str(address) for address in addresses]
    try:
        return _parse_cards(run([*question, *wanted], timeout_s), kind) if wanted else {}
    except NoAnswer as error:
        report(str(error))
        return {}


def _parse_cards(output: bytes, kind: Callable[..., _Told]) -> Mapping[model.PciAddress, _Told]:
    """Parse the probe's output into facts by card.

    :raises NoAnswer: where the probe printed no answer
    """
    cards = {}
    for address, card in read(output, "cards").items():
        answer = told(address, "answer", card, lambda c: kind(**_facts_of(c)))
        if answer is not None:
            cards[address] = answer
    return cards


def _facts_of(card: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check the types of one card's facts.

    :raises TypeError: where one is something else
    """
    kinds = {"refused": str}
    return {
        name: known(kinds.get(name, int), value)
        for name, value in card.items()
        if name != "address"
    }


def read(output: bytes, name: str) -> Mapping[model.PciAddress, Mapping[str, Any]]:
    """Return the answer about each card that can be identified.

    :raises NoAnswer: where there is none
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


def told(
    address: model.PciAddress,
    what: str,
    card: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], _Told],
) -> _Told | None:
    """Return one fact of one card, ``None`` where it cannot be read.

    The others count all the same.
    """
    try:
        return read(card)
    except _NOT_UNDERSTOOD as error:
        _report_fact(f"GPU {address}", what, repr(error))
        return None


@functools.cache
def _report_fact(whose: str, what: str, reason: str) -> None:
    LOG.warning("Cannot parse NVML's %s of %s, which counts as unknown: %s", what, whose, reason)


# The NVLinks of a card, counted by the place and the kind of what is at their other end. The place
# is an address or, of switches that are not on PCI, the fabric that they make.
_Bricks = collections.Counter[tuple[model.PciAddress | str, int]]


def _bricks(card: Mapping[str, Any]) -> _Bricks:
    links = [(_peer(peer), kind) for peer, kind in card["nvlinks"]]
    switched = sum(kind == _PEER_IS_SWITCH for _, kind in links)
    fabric = _fabric(card.get("fabric"))
    # The library may not tell of each link where it leads, and yet how many lead to switches.
    more = max(known(int, card.get("switched_links")) or 0, switched) - switched
    return collections.Counter(
        [
            *((peer or fabric, kind) for peer, kind in links if peer or kind == _PEER_IS_SWITCH),
            *[(fabric, _PEER_IS_SWITCH)] * min(more, _MOST_LINKS),
        ]
    )


def _peer(spelled: str | None) -> model.PciAddress | None:
    """Return ``None`` of what is not on PCI.

    The library spells that ``FFFFFFFF:FF:FF.0``, empty or with bytes that are no text, and nccl's
    src/graph/xml.cc reads all three.
    """
    try:
        return model.PciAddress.parse(spelled or "")
    except exception.InvalidPciAddress:
        return None


def _fabric(fabric: Mapping[str, Any] | None) -> str:
    """Return a name for what the card's switches join, the same for all that they join.

    Of one host they are one fabric, unless the cards say that they are parts of different ones.
    """
    if fabric is None or fabric["state"] != FABRIC_COMPLETED:
        return ""
    return f"{fabric['cluster']}/{fabric['clique']}"


def _facts(
    address: model.PciAddress, card: Mapping[str, Any], bricks: Mapping[model.PciAddress, _Bricks]
) -> NvmlFacts:
    def fact(what: str, read: Callable[[Any], _Told | None]) -> _Told | None:
        return told(address, what, card, lambda of: read(of[what]))

    return NvmlFacts(
        name=fact("name", lambda name: products.short_name(known(str, name))),
        architecture=fact(
            "architecture", lambda number: _ARCHITECTURES.get(known(int, number) or 0)
        ),
        memory_mib=fact("memory", lambda memory: (known(int, memory) or 0) // 2**20 or None),
        compute_capability=fact("compute_capability", _capability),
        uuid=fact("uuid", lambda uuid: known(str, uuid)),
        links=_links(address, bricks) if address in bricks else (),
        minor=fact("minor", lambda minor: known(int, minor)),
        mig=fact("mig", lambda mig: None if mig is None else tuple(sorted(map(_instance, mig)))),
    )


def _capability(capability: Sequence[Any] | None) -> tuple[int, int] | None:
    return (int(capability[0]), int(capability[1])) if capability else None


def _instance(instance: Mapping[str, Any]) -> MIGInstance:
    """Return the MIG instance; its profile ends its name: ``NVIDIA H200 MIG 1g.18gb``."""
    name = known(str, instance["name"]) or ""
    _, _, profile = name.rpartition(" MIG ")
    return MIGInstance(
        gpu_instance=int(instance["gpu_instance"]),
        compute_instance=int(instance["compute_instance"]),
        profile=profile if name != profile else None,
        memory_mib=known(int, instance["memory_mib"]),
        slices=known(int, instance["slices"]),
        uuid=known(str, instance["uuid"]),
    )


def known(kind: type[_Told], value: Any) -> _Told | None:
    """Return *value*, which is of that kind or null.

    :raises TypeError: where *value* is neither
    """
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"{value!r} is no {kind.__name__}")


def _links(
    address: model.PciAddress, bricks: Mapping[model.PciAddress, _Bricks]
) -> tuple[model.Link, ...]:
    """Return the links to peers at the other end, and to those on the same switches."""
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
    """Return what the probe printed.

    :raises NoAnswer: where it cannot be started, fails or takes too long
    """
    _hanging[:] = [process for process in _hanging if process.poll() is None]
    if _hanging:  # in every period there would be one more that cannot be killed
        raise NoAnswer(f"an earlier probe (pid {_hanging[0].pid}) still hangs in the driver")
    try:
        return child.run([sys.executable, "-P", str(_PROBE), *arguments], timeout_s)
    except child.TimedOut as error:
        _hanging.append(error.process)
        raise NoAnswer(f"the probe {error} ([gpu]nvml_timeout) and was ended") from error
    except child.Failed as error:
        raise NoAnswer(f"the probe {error}") from error
