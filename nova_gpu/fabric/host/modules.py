# SPDX-License-Identifier: Apache-2.0
"""Which module of its board each card is, by PCI address.

NVML reports it of a card that NVIDIA's driver has; of one that a guest has, no library does. So it
is kept: a module is a place on the board, which a card that is put in for another one has too. It
is void where the cards of the board are at other addresses than when it was written, as the
firmware may have numbered the buses anew.
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


def completed(path: pathlib.Path, board: Collection[PciAddress], modules: Modules) -> Modules:
    """Return the modules of the cards of *board*.

    NVML reports *modules*; those of the other cards are in the file at *path*, unless the two
    contradict each other.
    """
    former = _kept(path)
    if former.keys() != frozenset(board) or any(former[card] != modules[card] for card in modules):
        return modules
    return {**former, **modules}


def keep(path: pathlib.Path, board: Collection[PciAddress], known: Modules) -> None:
    """Save the modules of the cards of *board*, once they are known of all and were not saved yet.

    A file that contradicts them is removed.
    """
    former = _kept(path)
    if known == former:
        return
    is_whole = known.keys() == frozenset(board)
    content = {str(card): known[card] for card in sorted(known)}
    try:
        if is_whole:
            files.write_json(path, {"modules": content}, indent=1)
        elif any(former.get(card, known[card]) != known[card] for card in known):
            files.remove(path)
    except OSError as error:
        LOG.warning("Failed to record which board modules hold the host's GPUs: %s", error)


def _kept(path: pathlib.Path) -> Modules:
    """Return the modules saved at *path*; none if :func:`keep` did not write the file."""
    try:
        content = files.read_json(path)["modules"].items()
        modules = {PciAddress.parse(card): int(module) for card, module in content}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    except exception.InvalidPciAddress:
        return {}
    return modules if len(set(modules.values())) == len(modules) else {}
