# SPDX-License-Identifier: Apache-2.0
"""The doors of extensions: capabilities that most clouds do without, each in packages of its own.

An extension imports the rest of the project. The rest imports no extension and knows none by name:
it loads what the installed ones offer as entry points of these groups.

``nova_gpu.card_gates``
    A function that returns a :class:`nova_gpu.virt.card_gates.Gate`, or ``None``, called with the
    roots and, in nova-compute, a function that identifies cards.
``nova_gpu.closing_traits``
    Traits of compute nodes that get no new instances with GPUs, each a
    :class:`nova_gpu.core.placement.closing_trait.ClosingTrait`. The client loads them, too.
``nova_gpu.commands``
    A function that adds parsers of commands to ``nova-gpu`` (:mod:`nova_gpu.cmd.arguments`).
``nova_gpu.extra_specs``
    Extra specs of flavors, each a :class:`nova_gpu.core.flavor.declaration.ExtraSpec`, in a module
    that imports nothing of :mod:`nova_gpu.core.flavor.gpu_extra_specs`. The client loads them, too.
``nova_gpu.options``
    Options of the group ``[gpu]``, in a module that imports nothing of :mod:`nova_gpu`.
``nova_gpu.set_traits``
    A function that returns the :class:`nova_gpu.core.card_sets.CardSets` that a provider's traits
    describe, or ``None``. The client loads them, too.
``nova_gpu.sets``
    A class, :class:`nova_gpu.virt.card_sets.Sets`, called with the roots and the ledger.
``nova_gpu.board_text``
    A module with the functions of :mod:`nova_gpu.cmd.board`.
``nova_gpu.shortages``
    A function that the scheduler's filter calls with a request spec, what it requests and the hosts
    that pass. It returns why none of them has suitable free GPUs, or ``None``.
``nova_gpu.start_remedies``
    A function that is called with a flavor's extra specs and returns what its instance's user can
    do if the instance cannot have its GPUs again on its host, or ``None``.
``nova_gpu.vendordata``
    A function that returns what it adds to the vendordata of an instance.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import metadata
from typing import Any


def load(group: str) -> list[Any]:
    """Import and return what extensions offer as entry points of *group*, in order of their names.

    Services call this once, at their start, because the files may be replaced while they run.
    """
    points = (point for point in _points() if point.group == group)
    return [point.load() for point in sorted(points, key=lambda point: point.name)]


def names() -> list[str]:
    """Return the names of the installed extensions: the first words of their entry points."""
    points = (point for point in _points() if point.group.startswith("nova_gpu."))
    return sorted({point.name.partition("_")[0] for point in points})


@functools.cache
def _points() -> Sequence[metadata.EntryPoint]:
    """Return the entry points of all installed distributions of the project or for it.

    ``metadata.entry_points`` parses those of all distributions, which takes five times as long.
    """
    points: dict[str, Sequence[metadata.EntryPoint]] = {}
    for distribution in metadata.distributions():
        if "nova_gpu" in (distribution.read_text("entry_points.txt") or ""):
            # The first of a name is the one that Python imports.
            points.setdefault(distribution.metadata["Name"], tuple(distribution.entry_points))
    return [point for ours in points.values() for point in ours]
