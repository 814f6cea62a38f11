# SPDX-License-Identifier: Apache-2.0
"""Extensions: capabilities that most clouds do without, each in a folder that can be deleted.

An extension imports the rest of the package. The rest imports no extension: it loads the modules
below by name, where their folder is installed, and works without them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
from typing import Any

# The doors: the modules of extensions that the rest of the package loads
SETS = "nova_gpu.fabric.virt.fabric"  # its Fabric is a nova_gpu.virt.sets.Sets
SHORTAGE = "nova_gpu.fabric.scheduler.partition_reasons"  # nova_gpu.scheduler.filters asks it
BOARD_TEXT = "nova_gpu.fabric.cmd.board_text"  # nova_gpu.cmd.board has its functions
LICENCE = "nova_gpu.licence.api.vgpu_licence"  # nova_gpu.api.vendordata adds what it returns
# Commands of nova-gpu: nova_gpu.cmd.arguments has their options
SHADOW = "nova_gpu.stock.cmd.shadow"
ADOPT = "nova_gpu.stock.cmd.adopt"
LEAVE = "nova_gpu.stock.cmd.leave"


def load(door: str) -> Any | None:
    """Import and return a module of an extension, ``None`` if its folder is not installed."""
    return importlib.import_module(door) if is_installed(door) else None


def is_installed(door: str) -> bool:
    """Return whether the extension of this module is installed; import nothing of it."""
    package, folder, *_ = door.split(".")
    # Only next to the package that runs: an editable installation may lie elsewhere.
    folders = importlib.import_module(package).__path__
    spec = importlib.machinery.PathFinder.find_spec(f"{package}.{folder}", folders)
    # A folder that contains only compiled modules has no origin: the extension was deleted.
    return bool(spec and spec.origin)
