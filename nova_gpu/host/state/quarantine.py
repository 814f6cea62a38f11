# SPDX-License-Identifier: Apache-2.0
"""Cards that nobody new is given before an operator says so: one file per card.

A file is one JSON object, named after the card's address::

    0000:88:00.0.json
    {"address": "0000:88:00.0", "product": "10de:2335", "reason": "...", "remedy": "...",
     "since": "2026-11-21T15:40:11+00:00", "cleaning": false, "until_boot": null}

It is about the card, not the slot: one of another product at that address is another card. One of
the same product cannot be told from it, and stays until it is released. What cannot be understood
is about whatever is at the address.

With ``cleaning`` it only says that the card is being cleaned, so that this is not forgotten where
nova-compute ends meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable

from oslo_utils import timeutils

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.state import small_files

_SUFFIX = ".json"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """``product`` as ``10de:2335``, ``None`` for any; ``since`` in ISO 8601, with its offset.

    With ``until_boot`` it is over when the host's boot id is another than that.
    """

    address: PciAddress
    product: str | None
    reason: str
    remedy: str
    since: str
    cleaning: bool = False
    until_boot: str | None = None


def entry(
    card: GPU,
    reason: str,
    remedy: str,
    *,
    cleaning: bool = False,
    until_boot: str | None = None,
) -> Entry:
    """One about *card*, from now on"""
    now = timeutils.utcnow(with_timezone=True).isoformat(timespec="seconds")
    return Entry(card.address, card.product.key, reason, remedy, now, cleaning, until_boot)


def reasons(folder: pathlib.Path, cards: Iterable[GPU]) -> dict[PciAddress, str]:
    """Those of *cards* that are in quarantine: why, and what to do.

    All of them where the folder cannot be read.
    """
    try:
        entries = load(folder)
    except OSError as error:
        reason = f"whether it is in quarantine cannot be read: {error}; mend that"
        return {card.address: reason for card in cards}
    return {
        card.address: f"it is in quarantine since {found.since}: {found.reason}; {found.remedy}"
        for card in cards
        if (found := entries.get(card.address)) and not found.cleaning and is_about(found, card)
    }


def is_about(found: Entry, card: GPU) -> bool:
    """Whether *card*, which is at the entry's address now, is the one that was meant."""
    return found.product in (None, card.product.key)


def begin_cleaning(folder: pathlib.Path, card: GPU) -> None:
    """Notes that *card* is to be cleaned, unless it is in quarantine already.

    :raises OSError: where that cannot be written
    """
    found = load(folder).get(card.address)
    if found is None or not is_about(found, card):
        put(folder, entry(card, "it was not cleaned", "clean it", cleaning=True))


def end_cleaning(folder: pathlib.Path, address: PciAddress) -> None:
    """Takes back what :func:`begin_cleaning` noted.

    :raises OSError: where it cannot be removed
    """
    found = load(folder).get(address)
    if found is not None and found.cleaning:
        release(folder, address)


def end_those_of_former_boots(folder: pathlib.Path, boot_id: str) -> list[Entry]:
    """Takes away what was to last until the host has booted, and returns it.

    :raises OSError: where the folder cannot be read or changed
    """
    over = [
        each for each in load(folder).values() if each.until_boot and each.until_boot != boot_id
    ]
    for each in over:
        release(folder, each.address)
    return over


def load(folder: pathlib.Path) -> dict[PciAddress, Entry]:
    """Everything in the folder, by address; a folder that does not exist yet has nothing.

    :raises OSError: where the folder cannot be listed
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {}
    for name in sorted(names):
        with contextlib.suppress(exception.InvalidPciAddress, FileNotFoundError):
            address = PciAddress.parse(name.removesuffix(_SUFFIX))
            found[address] = _read(folder / name, address)
    return found


def put(folder: pathlib.Path, new: Entry) -> None:
    """Writes an entry in the place of what stood there, at once or not at all.

    :raises OSError: where it cannot be written
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    content = {**dataclasses.asdict(new), "address": str(new.address)}
    path = _path(folder, new.address)
    draft = path.with_name(f".{path.name}")
    with open(draft, "w") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)
    _settle(folder)


def release(folder: pathlib.Path, address: PciAddress) -> Entry | None:
    """Takes the card's file away; returns what it said, ``None`` where there was none.

    :raises OSError: where it cannot be removed
    """
    path = _path(folder, address)
    try:
        found = _read(path, address)
        path.unlink()
    except FileNotFoundError:
        return None
    _settle(folder)
    return found


def _path(folder: pathlib.Path, address: PciAddress) -> pathlib.Path:
    return folder / f"{address}{_SUFFIX}"


def _read(path: pathlib.Path, address: PciAddress) -> Entry:
    """:raises FileNotFoundError: where it went away meanwhile"""
    try:
        with small_files.opened(path, follow=False) as fd:
            content = json.loads(small_files.text(fd))
        texts = {name: content[name] for name in ("reason", "remedy", "since")}
        product = content["product"]
        if not all(isinstance(text, str) for text in (*texts.values(), product or "")):
            raise TypeError("text is expected")
        until_boot = content.get("until_boot")
        if until_boot is not None and not isinstance(until_boot, str):
            raise TypeError("a boot id is expected")
        cleaning = content["cleaning"] is True
        return Entry(address, product, cleaning=cleaning, until_boot=until_boot, **texts)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"{path} cannot be understood: {error!r}"
        remedy = f"see what is known of the card, then nova-gpu quarantine release {address}"
        return Entry(address, None, reason, remedy, "an unknown time")


def _settle(folder: pathlib.Path) -> None:
    """The names in it as well are to be found after a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
