# SPDX-License-Identifier: Apache-2.0
"""Proofs that a device was cleaned since its last guest: one file for each card or MIG instance.

A file is named after its device::

    0000:88:00.0.json, 0000:19:00.0@3g.71gb@100.json
    {"device": "0000:88:00.0", "product": "10de:2335", "division": [], "by": "reset", "after": null,
     "since": "2026-11-21T15:40:11+00:00",
     "seen": {"identity": {"nvidia": "GPU-4a2b..."}, "addresses": ["0000:88:00.0"],
              "boot_id": "1f0c..."}}

It is written after a cleaning and removed before a guest starts with the device. It is valid only
for the card and the boot of the host that ``seen`` describes, and while the card has the MIG
instances in ``division``. A device without a valid proof counts as not clean.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Iterable

from oslo_utils import timeutils

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import identity
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, quarantine
from nova_gpu.host.state.quarantine import Seen

_SUFFIX = ".json"
UNTOLD = (
    "the host does not report its boot id (/proc/sys/kernel/random/boot_id) or where its cards are"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Proof:
    """The proof that a device was cleaned.

    ``device`` is the card's address or the MIG instance's slot. ``by`` is the method of cleaning,
    ``after`` the uuid of the instance that had the device before, if known, ``since`` the time of
    cleaning in ISO 8601 with its offset. ``product`` (``10de:2335``) and ``seen`` identify the
    device's card, and ``division`` lists the card's MIG instances as :func:`division` does.
    """

    device: str
    product: str
    division: list[str]
    by: str
    after: str | None
    since: str
    seen: Seen


def write(
    folder: pathlib.Path, part: Device, card: GPU, seen: Seen, by: str, after: str | None
) -> None:
    """Write the :class:`Proof` that *part*, all of *card* or a MIG instance of it, is clean now.

    :raises OSError: if it cannot be written
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    now = timeutils.utcnow(with_timezone=True).isoformat(timespec="seconds")
    proof = Proof(str(part), card.product.key, division(card), by, after, now, seen)
    files.write_json(_path(folder, part), dataclasses.asdict(proof), mode=0o644, indent=1)


def division(card: GPU) -> list[str]:
    """Return the ids and profiles of the card's MIG instances, such as ``1/0 3g.71gb``, sorted."""
    return sorted(f"{instance.index} {instance.profile}" for instance in card.mig or ())


def revoke(folder: pathlib.Path, used: Collection[Device], here: Collection[Device] = ()) -> None:
    """Remove the proofs of all devices on the cards of *used*, the devices that a guest gets.

    :param here: the devices that the host has now; those that share no hardware with *used* keep
        their proofs
    :raises OSError: if one of the proofs may still exist
    """
    cards = tuple(str(device.function(other)) for other in used)
    stay = {_path(folder, other) for other in set(here) - device.clashing(here, used)}
    for path in map(folder.joinpath, files.names(folder)):
        if path.name.startswith(cards) and path not in stay:
            files.remove(path)


def holds(folder: pathlib.Path, part: Device, card: GPU, seen: Seen | None) -> bool:
    """Return whether *part* has a valid proof, as :func:`missing`."""
    return missing(folder, part, card, seen) is None


def missing(folder: pathlib.Path, part: Device, card: GPU, seen: Seen | None) -> str | None:
    """Return why *part*, all of *card* or a MIG instance of it, has no valid proof, or ``None``.

    :param seen: the present identity of *card*, ``None`` if it is unknown
    """
    path = _path(folder, part)
    try:
        proof = _read(path)
    except FileNotFoundError:
        return "it was not cleaned since the host booted, or since its last guest"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"the proof that it was cleaned cannot be read: {path}: {error}"
    if seen is None:
        return UNTOLD
    if proof.seen.boot_id != seen.boot_id:
        return "it was not cleaned since the host booted"
    is_same = identity.same(proof.seen.identity, seen.identity)
    if is_same is None:
        # While the host is up, a card may disappear, but no other one takes its place.
        is_same = set(seen.addresses) <= set(proof.seen.addresses)
    if (proof.device, proof.product) != (str(part), card.product.key) or not is_same:
        return "its proof of cleaning is of another card, which was at this address"
    if proof.division != division(card):
        return "its card was divided into other MIG instances since it was cleaned"
    return None


def see(
    cards: Iterable[GPU], roots: Roots, identities: quarantine.Identities | None = None
) -> dict[PciAddress, Seen]:
    """Return the present identities of *cards* by address, without those that are unknown."""
    seen = quarantine.see(cards, roots, identities)
    return {address: card for address, card in seen.items() if card.boot_id}


def _path(folder: pathlib.Path, part: Device) -> pathlib.Path:
    return folder / (str(part).replace("/", "@") + _SUFFIX)


def _read(path: pathlib.Path) -> Proof:
    content = files.read_json(path)
    texts = {name: content[name] for name in ("device", "product", "by", "since")}
    after, seen = content["after"], quarantine.parse_seen(content["seen"])
    # Earlier versions wrote no division; whole cards have none.
    parts = content.get("division", [])
    is_text = all(isinstance(text, str) for text in (*texts.values(), after or ""))
    if seen is None or not isinstance(parts, list) or not is_text:
        raise ValueError("it is no proof of cleaning")
    return Proof(**texts, division=parts, after=after, seen=seen)
