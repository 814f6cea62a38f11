# SPDX-License-Identifier: Apache-2.0
"""Which module of its board each card is, by PCI address.

NVML tells it of a card that NVIDIA's driver has, and nobody of one that a guest has. So it is kept:
a module is a place on the board, which a card that is put in for another one has too. It is void
where the cards of the board are at other addresses than when it was written, as the firmware may
have numbered the buses anew.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Collection, Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.sets.partitions import Module
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

Modules = Mapping[PciAddress, Module]


def completed(path: pathlib.Path, board: Collection[PciAddress], told: Modules) -> Modules:
    """Return the modules of the cards of *board*.

    What NVML *told*, and of the others what is kept at *path*, where the two do not contradict each
    other.
    """
    kept = _kept(path)
    if kept.keys() != frozenset(board) or any(kept[card] != told[card] for card in told):
        return told
    return {**kept, **told}


def keep(path: pathlib.Path, board: Collection[PciAddress], known: Modules) -> None:
    """Save the modules of the cards of *board*, once they are known of all and were not saved yet.

    A file that contradicts them is removed.
    """
    kept = _kept(path)
    if known == kept:
        return
    if known.keys() != frozenset(board):
        if any(kept.get(card, known[card]) != known[card] for card in known):
            files.remove(path)
        return
    content = {str(card): known[card] for card in sorted(known)}
    try:
        files.write_json(path, {"modules": content}, indent=1)
    except OSError as error:
        LOG.warning("Which modules of their board the host's GPUs are is not kept: %s", error)


def _kept(path: pathlib.Path) -> Modules:
    """Return what is kept at *path*; nothing where it is not what :func:`keep` writes."""
    try:
        content = files.read_json(path)["modules"].items()
        found = {PciAddress.parse(card): int(module) for card, module in content}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    except exception.InvalidPciAddress:
        return {}
    return found if len(set(found.values())) == len(found) else {}
