# SPDX-License-Identifier: Apache-2.0
"""What ``nvidia-smi -q -x`` says of a host's cards."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from lxml import etree

from nova_gpu.core.model import PciAddress

# What it writes for what a card does not tell
_UNKNOWN = ("", "N/A", "None", "Unknown Error", "Requested functionality has been deprecated")
_NUMBER = re.compile(r"(\d+)(?: (?:MiB|%))?")
_FLAGS = {"Yes": True, "No": False}


@dataclasses.dataclass(frozen=True)
class Card:
    """``None`` is what it does not say. ``instances`` are the GPU instance and the compute instance
    of each MIG device; ``fabric`` and ``recovery`` are its own words."""

    address: PciAddress
    product_id: str
    name: str
    architecture: str | None
    uuid: str
    minor: int | None
    memory_mib: int | None
    used_mib: int | None
    mapped_mib: int | None
    mig: bool | None
    instances: tuple[tuple[int, int], ...]
    uncorrected: int | None
    retirement_pending: bool | None
    remapping_pending: bool | None
    remapping_failed: bool | None
    fabric: str | None
    recovery: str | None


def read(text: bytes) -> tuple[Card, ...]:
    """The cards, by address"""
    # Its DTD is on nobody's disk.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(text, parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"nvidia-smi -q -x printed no XML: {error}") from error
    return tuple(sorted(map(_card, root.findall("gpu")), key=lambda card: card.address))


def _card(gpu: Any) -> Card:
    device = _required(gpu, "pci/pci_device_id")
    # As in a register: the device's id, then the vendor's
    if not re.fullmatch(r"(0x)?[0-9A-F]{4}10DE", device, re.IGNORECASE):
        raise ValueError(f"{device} is no id of a device of NVIDIA's")
    mode = _text(gpu, "mig_mode/current_mig")
    return Card(
        address=PciAddress.parse(_required(gpu, "pci/pci_bus_id")),
        product_id=device.lower().removeprefix("0x")[:4],
        name=_required(gpu, "product_name"),
        architecture=_text(gpu, "product_architecture"),
        uuid=_required(gpu, "uuid"),
        minor=_number(gpu, "minor_number"),
        memory_mib=_number(gpu, "fb_memory_usage/total"),
        used_mib=_number(gpu, "fb_memory_usage/used"),
        mapped_mib=_number(gpu, "bar1_memory_usage/total"),
        mig=None if mode is None else mode == "Enabled",
        instances=tuple(sorted(map(_instance, gpu.findall("mig_devices/mig_device")))),
        uncorrected=_uncorrected(gpu.find("ecc_errors/volatile")),
        retirement_pending=_flag(gpu, "retired_pages/pending_retirement"),
        remapping_pending=_flag(gpu, "remapped_rows/remapped_row_pending"),
        remapping_failed=_flag(gpu, "remapped_rows/remapped_row_failure"),
        fabric=_text(gpu, "fabric/state"),
        recovery=gpu.findtext("gpu_recovery_action"),
    )


def _instance(device: Any) -> tuple[int, int]:
    return (
        int(_required(device, "gpu_instance_id")),
        int(_required(device, "compute_instance_id")),
    )


def _uncorrected(errors: Any) -> int | None:
    """Of each kind of memory: a card has ``sram_uncorrectable``, or that in parts."""
    if errors is None:
        return None
    names = [element.tag for element in errors if "uncorrectable" in element.tag]
    counts = [count for count in (_number(errors, name) for name in names) if count is not None]
    return sum(counts) if counts else None


def _text(element: Any, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in _UNKNOWN else text


def _required(element: Any, path: str) -> str:
    text = _text(element, path)
    if text is None:
        raise ValueError(f"nvidia-smi -q -x does not say {path}")
    return text


def _number(element: Any, path: str) -> int | None:
    text = _text(element, path)
    if text is None:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{path} is {text!r}, which is no number")
    return int(match[1])


def _flag(element: Any, path: str) -> bool | None:
    text = _text(element, path)
    return None if text is None else _FLAGS[text]
