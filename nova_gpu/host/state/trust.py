# SPDX-License-Identifier: Apache-2.0
"""Whose files are believed."""

from __future__ import annotations

import os
import pathlib
import stat

_ROOT_GID = 0


class Untrusted(Exception):
    """Why a folder or a file is not believed"""


def believe(path: pathlib.Path, status: os.stat_result) -> None:
    """:raises Untrusted: where somebody else than this process's user and root could change it"""
    if reason := distrust(status, os.geteuid()):
        raise Untrusted(f"{path} is not believed: {reason}")


def distrust(status: os.stat_result, owner_uid: int) -> str | None:
    """Why a file or folder with *status* is refused, or ``None``.

    Nobody but *owner_uid* and the group of root may be able to change it.
    """
    if status.st_uid != owner_uid:
        return f"its owner is uid {status.st_uid} and must be uid {owner_uid}"
    if status.st_mode & stat.S_IWOTH:
        return f"everybody can write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IWGRP and status.st_gid != _ROOT_GID:
        return f"the group {status.st_gid} can write to it"
    return None
