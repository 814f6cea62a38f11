# SPDX-License-Identifier: Apache-2.0
"""The file with the module number of each card on a board with NVSwitches, by PCI address.

A module number is a place on the board. NVML reports it for a card with NVIDIA's driver, but
nothing reports it for a card that a guest has. So the numbers are saved; they stay valid if a card
is replaced. The file is ignored if the cards of the board now have other addresses, because the
firmware may have numbered the buses anew.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Collection, Mapping

from nova_gpu.core import exception
from nova_gpu.core.card_sets import Module
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

Modules = Mapping[PciAddress, Module]


def completed(path: pathlib.Path, board: Collection[PciAddress], modules: Modules) -> Modules:
    """Return *modules* and, for the other cards of *board*, the module numbers in the file.

    Return only *modules* if the file contradicts them, or is not about the cards of *board*.

    :param path: the file that :func:`keep` writes
    :param modules: the module numbers that NVML reports now
    """
    former = _recorded(path)
    if former.keys() != frozenset(board) or any(former[card] != modules[card] for card in modules):
        return modules
    return {**former, **modules}


def keep(path: pathlib.Path, board: Collection[PciAddress], known: Modules) -> None:
    """Save *known*, the module numbers of the cards of *board*, if no card's number is missing.

    If one is missing, only remove a file that contradicts *known*. A failure is logged.
    """
    former = _recorded(path)
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
        LOG.warning(
            "Failed to save the module numbers of the host's GPUs, which are needed while guests "
            "have GPUs: %s",
            error,
        )


def _recorded(path: pathlib.Path) -> Modules:
    """Return the module numbers in the file at *path*; none if there is no valid file."""
    try:
        content = files.read_json(path)["modules"].items()
        modules = {PciAddress.parse(card): int(module) for card, module in content}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    except exception.InvalidPciAddress:
        return {}
    return modules if len(set(modules.values())) == len(modules) else {}
