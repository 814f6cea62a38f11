# SPDX-License-Identifier: Apache-2.0
"""Records of tests, one file per card.

For example::

    0000:88:00.0.json
    {"state": "PASS", "text": "", "since": 1796082011.2, "asks": null, "product": "10de:2335",
     "versions": {"driver": "580.82.09", "firmware": "96.00.89.00.01"},
     "seen": {"identity": {"nvidia": "GPU-4a2b..."}, "addresses": ["0000:88:00.0"],
              "boot_id": "1f0c..."}}

nova-compute writes them, and ``nova-gpu test`` removes one. A card without a file is to be tested.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.nvidia import proc
from nova_gpu.host.pci import identity, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, proofs, quarantine
from nova_gpu.host.state.quarantine import Seen
from nova_gpu_cardlife.core import gate

_MODE = 0o644


@dataclasses.dataclass(frozen=True, slots=True)
class Tested:
    """The record of a card with the properties that the card had then."""

    record: gate.Record
    product: str
    versions: Mapping[str, str]
    seen: Seen


def versions(card: GPU, roots: Roots) -> dict[str, str]:
    """Return the versions of the card's driver and firmware, without those that are unknown.

    NVIDIA's driver shows question marks for the firmware of a card that it has not initialised.
    Neither is known while vfio-pci has the card.
    """
    firmware = proc.card(card.address, roots).get("Video BIOS", "")
    driver = proc.version(roots) if card.driver == "nvidia" else None
    if card.driver not in (None, "nvidia", "vfio-pci"):
        driver = _attribute(f"{roots.sysfs}/module/{card.driver}", "version")
        firmware = _attribute(sysfs.device(card.address, roots), "vbios_version")
    known = {"driver": driver or "", "firmware": firmware}
    return {name: text for name, text in known.items() if text and "?" not in text}


def _attribute(folder: str, name: str) -> str:
    try:
        return sysfs.attribute(folder, name)
    except OSError:
        return ""


def changed(tested: Tested, card: GPU, seen: Seen | None, now: Mapping[str, str]) -> str | None:
    """Return what of *card* has changed since it was *tested*, ``None`` if nothing has.

    :param seen: its present identity, ``None`` if that is unknown
    :param now: its present versions
    """
    if seen is None:
        return f"it may have changed: {proofs.UNTOLD}"
    is_same = identity.same(tested.seen.identity, seen.identity)
    if is_same is None:
        # While the host is up, a card may disappear, but no other one takes its place.
        is_same = tested.seen.boot_id == seen.boot_id or tested.seen.addresses == seen.addresses
    if tested.product != card.product.key or not is_same:
        return "another card may have taken its place"
    if "driver" in now.keys() - tested.versions.keys() and tested.record.state != gate.UNTESTED:
        return "its driver has it, which was not there"
    for name, version in tested.versions.items():
        if now.get(name, version) != version:
            return f"its {name} changed from {version} to {now[name]}"
    return None


def read(folder: pathlib.Path, card: PciAddress) -> Tested | None:
    """Return the record of the card, ``None`` if it has none.

    :raises OSError, ValueError: if it cannot be read
    """
    path = files.of_card(folder, card)
    try:
        content = files.read_json(path)
        seen = quarantine.parse_seen(content["seen"])
        known = {str(name): str(text) for name, text in content["versions"].items()}
        since, asks = float(content["since"]), content.get("asks")
        record = gate.Record(content["state"], content["text"], since, asks)
        if seen is None:
            raise ValueError("it does not say which card it is of")
        return Tested(record, str(content["product"]), known, seen)
    except FileNotFoundError:
        return None
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no record of a test: {error!r}") from error


def write(folder: pathlib.Path, card: PciAddress, tested: Tested) -> None:
    """Write the record of the card; *folder* must exist.

    :raises OSError: if it cannot be written
    """
    content = {
        **dataclasses.asdict(tested.record),
        "product": tested.product,
        "versions": dict(tested.versions),
        "seen": dataclasses.asdict(tested.seen),
    }
    files.write_json(files.of_card(folder, card), content, mode=_MODE, indent=1)


def remove(folder: pathlib.Path, card: PciAddress) -> None:
    """Remove the record of the card, which makes a test of it due."""
    files.remove(files.of_card(folder, card))
