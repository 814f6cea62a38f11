# SPDX-License-Identifier: Apache-2.0
"""The device nodes, mounts and environment of a container with GPUs, as plain values."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Mount:
    """A file or folder of the host that the guest sees at ``target``, read-only."""

    source: str
    target: str


@dataclasses.dataclass(frozen=True, slots=True)
class GuestContents:
    """The device nodes, mounts and environment that one container needs for its GPUs.

    ``nodes`` are paths below /dev, the same on the host and in the guest, sorted and without
    duplicates. ``env`` is the environment of the guest's init process.
    """

    nodes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
