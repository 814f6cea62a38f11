# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's management library knows of the cards that the nvidia driver holds.

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
from nova_gpu.core.health import NvmlHealth
from nova_gpu.core.vgpu.mig import MIGInstance
from nova_gpu.host import child
from nova_gpu.host.pci import products

LOG = logging.getLogger(__name__)

_Told = TypeVar("_Told")

# The driver whose cards the library knows
DRIVER = "nvidia"

_PROBE = pathlib.Path(__file__).with_name("nvml_probe.py")

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


@dataclasses.dataclass(frozen=True, slots=True)
class NvmlFacts:
    """One card; ``None`` is what the library would not tell. ``minor`` is the N of /dev/nvidiaN,
    ``mig`` are the instances of a card that is in MIG mode."""

    name: str | None = None
    architecture: str | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    uuid: str | None = None
    links: tuple[model.Link, ...] = ()
    minor: int | None = None
    mig: tuple[MIGInstance, ...] | None = None


def query(timeout_s: float) -> Mapping[model.PciAddress, NvmlFacts]:
    """Every card the library sees, or nothing: then one log line says why. Raises nothing."""
    try:
        return _parse(_run([sys.executable, "-P", str(_PROBE)], timeout_s))
    except _NoAnswer as error:
        _report(str(error))
        return {}


def health(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, NvmlHealth]:
    """How those of the cards are that the library has; as :func:`query` where it fails."""
    wanted = [str(address) for address in addresses]
    if not wanted:
        return {}
    try:
        return _parse_cards(
            _run([sys.executable, "-P", str(_PROBE), *wanted], timeout_s), NvmlHealth
        )
    except _NoAnswer as error:
        _report(str(error))
        return {}


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """How busy a card is, in percent of the last moments, and bytes of its memory; ``None`` is what
    the library does not tell of it."""

    utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None


def usage(
    addresses: Iterable[model.PciAddress], timeout_s: float
) -> Mapping[model.PciAddress, Usage]:
    """What is used of those of the cards that the library has; as :func:`query` where it fails."""
    wanted = [str(address) for address in addresses]
    if not wanted:
        return {}
    try:
        output = _run([sys.executable, "-P", str(_PROBE), "--usage", *wanted], timeout_s)
        return _parse_cards(output, Usage)
    except _NoAnswer as error:
        _report(str(error))
        return {}


# What reading an answer raises that is not as nvml_probe.py says
_NOT_UNDERSTOOD = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
    exception.InvalidPciAddress,
)
# A process that is killed inside of the driver ends when the driver lets go of it.
_hanging: list[subprocess.Popen[bytes]] = []


class _NoAnswer(Exception):
    """Why the library's answer is missing."""


@functools.cache
def _report(reason: str) -> None:
    """Once for each reason: the periodic task asks every minute."""
    LOG.warning(
        "NVML tells nothing about this host's NVIDIA GPUs: %s. Their memory, UUIDs, NVLinks and "
        "ECC errors are unknown; set [gpu]nvml = false if that is meant to be.",
        reason,
    )


def _parse(output: bytes) -> Mapping[model.PciAddress, NvmlFacts]:
    """The facts in what the probe printed.

    :raises _NoAnswer: where it printed none
    """
    try:
        answer = json.loads(output)
        if "error" in answer:
            raise _NoAnswer(answer["error"])
        cards = {model.PciAddress.parse(card["address"]): card for card in answer["gpus"]}
        bricks = {address: _bricks(card["nvlinks"]) for address, card in cards.items()}
        return {address: _facts(address, card, bricks) for address, card in cards.items()}
    except _NOT_UNDERSTOOD as error:
        raise _NoAnswer(f"the probe's answer cannot be understood: {error!r}") from error


def _parse_cards(output: bytes, kind: Callable[..., _Told]) -> Mapping[model.PciAddress, _Told]:
    """:raises _NoAnswer: where the probe printed no answer"""
    try:
        answer = json.loads(output)
        if "error" in answer:
            raise _NoAnswer(answer["error"])
        return {
            model.PciAddress.parse(card.pop("address")): kind(**card) for card in answer["cards"]
        }
    except _NOT_UNDERSTOOD as error:
        raise _NoAnswer(f"the probe's answer cannot be understood: {error!r}") from error


# The NVLinks of a card, counted by the address and the kind of what is at their other end.
_Bricks = collections.Counter[tuple[model.PciAddress, int]]


def _bricks(nvlinks: Sequence[Sequence[Any]]) -> _Bricks:
    return collections.Counter((model.PciAddress.parse(peer), kind) for peer, kind in nvlinks)


def _facts(
    address: model.PciAddress, card: Mapping[str, Any], bricks: Mapping[model.PciAddress, _Bricks]
) -> NvmlFacts:
    capability = card["compute_capability"]
    memory = _known(int, card["memory"])
    return NvmlFacts(
        name=products.short_name(card["name"]),
        architecture=_ARCHITECTURES.get(card["architecture"]),
        memory_mib=memory // 2**20 if memory else None,
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        uuid=_known(str, card["uuid"]),
        links=_links(address, bricks),
        minor=_known(int, card["minor"]),
        mig=None if card["mig"] is None else tuple(sorted(map(_instance, card["mig"]))),
    )


def _instance(told: Mapping[str, Any]) -> MIGInstance:
    """The profile is what stands behind the card's name: ``NVIDIA H200 MIG 1g.18gb``"""
    _, _, profile = (told["name"] or "").rpartition(" MIG ")
    return MIGInstance(
        gpu_instance=int(told["gpu_instance"]),
        compute_instance=int(told["compute_instance"]),
        profile=profile if told["name"] != profile else None,
        memory_mib=_known(int, told["memory_mib"]),
        slices=_known(int, told["slices"]),
        uuid=_known(str, told["uuid"]),
    )


def _known(kind: type[_Told], value: Any) -> _Told | None:
    """:raises TypeError: where *value* is neither that nor null"""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"{value!r} is no {kind.__name__}")


def _links(
    address: model.PciAddress, bricks: Mapping[model.PciAddress, _Bricks]
) -> tuple[model.Link, ...]:
    """Peers at the other end of a link, and those that hang on the same switches."""
    widths: collections.Counter[model.PciAddress] = collections.Counter()
    mine = bricks[address]
    for (peer, kind), width in mine.items():
        if kind == _PEER_IS_GPU:
            widths[peer] += width
    for peer, theirs in bricks.items():
        if peer != address:
            common = (mine & theirs).items()
            widths[peer] += sum(width for (_, kind), width in common if kind == _PEER_IS_SWITCH)
    return tuple(
        model.Link(peer, model.LinkType.NVLINK, width)
        for peer, width in sorted(widths.items())
        if width
    )


def _run(command: Sequence[str], timeout_s: float) -> bytes:
    """What *command* printed.

    :raises _NoAnswer: where it cannot be started, fails or takes too long
    """
    _hanging[:] = [process for process in _hanging if process.poll() is None]
    if _hanging:  # in every period there would be one more that cannot be killed
        raise _NoAnswer(f"an earlier probe (pid {_hanging[0].pid}) still hangs in the driver")
    try:
        return child.run(command, timeout_s)
    except child.TimedOut as error:
        _hanging.append(error.process)
        raise _NoAnswer(f"the probe {error} ([gpu]nvml_timeout) and was ended") from error
    except child.Failed as error:
        raise _NoAnswer(f"the probe {error}") from error
