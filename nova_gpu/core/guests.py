# SPDX-License-Identifier: Apache-2.0
"""The guests: capabilities that most clouds do without, each in one folder of its own.

A guest imports what is at home, and nothing at home imports a guest: it asks the modules below,
where their folder is installed. Without it all else works.
"""

from __future__ import annotations

import importlib
import importlib.machinery
from typing import Any

# The doors: what home asks, and the module of the guest that answers
SETS = "nova_gpu.fabric.virt.fabric"  # its Fabric is a nova_gpu.virt.sets.Sets
SHORTAGE = "nova_gpu.fabric.scheduler.partitions"  # nova_gpu.scheduler.filters asks it
BOARD_TEXT = "nova_gpu.fabric.cmd.board_text"  # nova_gpu.cmd.board has its functions


def load(door: str) -> Any | None:
    """Return the module of a guest, None where the guest's folder is not installed."""
    home, guest, *_ = door.split(".")
    # Not where else the home's package may lie too, as one does that is installed editable.
    folders = importlib.import_module(home).__path__
    spec = importlib.machinery.PathFinder.find_spec(f"{home}.{guest}", folders)
    # A folder with nothing but compiled modules left is none.
    return importlib.import_module(door) if spec and spec.origin else None
