# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's management library answered about a host's cards, without whose they are.

What :mod:`nova_gpu.host.nvidia.nvml_probe` printed, in the words of ``tests/fixtures/nvml.py``, so
that the tests' library can answer so too. UUIDs are left out, that of a fabric is a number.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import nvml, nvml_vgpus

_Entry = dict[str, Any]
_NO_FABRIC = "0" * 32


def record(addresses: Iterable[PciAddress], timeout_s: float) -> list[_Entry]:
    """One entry for each of the cards that the library has.

    :raises NoAnswer: where it tells nothing
    """
    cards = nvml.read(nvml.run([], timeout_s), "gpus")
    types = _vgpu_types(nvml_vgpus.ask(addresses, timeout_s))
    clusters: dict[str, int] = {_NO_FABRIC: 0}
    found = []
    for address, told in sorted(cards.items()):
        try:
            entry = dict(_card(told, clusters)) | types.get(address, {})
        except (LookupError, TypeError, ValueError, AttributeError):
            continue  # the readers report what they cannot understand
        found.append({"address": str(address), **entry})
    return found


def _card(told: Mapping[str, Any], clusters: dict[str, int]) -> Iterator[tuple[str, Any]]:
    yield "name", told["name"]
    yield "architecture", told["architecture"]
    yield "memory_mib", told["memory"] and told["memory"] // 2**20
    yield (
        "capability",
        told["compute_capability"] and ".".join(map(str, told["compute_capability"])),
    )
    if told["nvlinks"]:
        links = collections.Counter((peer, kind) for peer, kind in told["nvlinks"])
        yield "links", [[peer, kind, count] for (peer, kind), count in links.items()]
    if told["switched_links"]:
        yield "switched_links", told["switched_links"]
    if fabric := told["fabric"]:
        cluster = clusters.setdefault(fabric["cluster"], len(clusters))
        yield "fabric", [fabric["state"], fabric["status"], fabric["clique"], cluster]
    if told["mig"] is not None:
        yield "mig", [_instance(each) for each in told["mig"]]


def _instance(told: Mapping[str, Any]) -> _Entry:
    return {
        "gpu_instance": told["gpu_instance"],
        "compute_instance": told["compute_instance"],
        "profile": (told["name"] or "").rpartition(" MIG ")[2],
        "memory_mib": told["memory_mib"],
        "slices": told["slices"],
    }


def _vgpu_types(answer: str) -> Mapping[PciAddress, _Entry]:
    """The vGPU types of each card by id, and how many GPU instances of each profile it has"""
    try:
        cards = nvml.read(answer.encode(), "cards")
    except nvml.NoAnswer:
        return {}
    return {address: dict(_types(told)) for address, told in cards.items()}


def _types(told: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if types := told.get("types"):
        yield "types", {each["id"]: _type(each) for each in types}
    if instances := told.get("instances"):
        yield "instances", {int(profile): count for profile, count in instances.items()}


def _type(told: Mapping[str, Any]) -> _Entry:
    found = {
        "name": told["name"],
        "memory_mib": told["memory"] and told["memory"] // 2**20,
        "most": told["most"],
        "heads": told["heads"],
        "resolution": told["resolution"] and "x".join(map(str, told["resolution"])),
    }
    return found | {key: told[key] for key in ("profile", "per_instance") if told[key] is not None}
