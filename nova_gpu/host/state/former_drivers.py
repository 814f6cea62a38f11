# SPDX-License-Identifier: Apache-2.0
"""What drove the functions of a card before it was given to guests: one file per card.

Only root writes the files, and only root's are believed. Everybody may see which cards have one.
Drivers are bound anew when the host boots: what was written before that is void.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

from nova_gpu.core import exception, model
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import small_files, trust

_DRIVER = re.compile(r"[\w-]+", re.ASCII)
_SUFFIX = ".json"
# What reading raises of a file that is not as :func:`save` writes it
_NOT_OURS = (
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
    exception.InvalidPciAddress,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Former:
    """``driver``: ``None`` where it had none. ``override``: what an operator had written to the
    function's driver_override, which is not only for the driver it has."""

    driver: str | None
    override: str | None = None


Formers = Mapping[model.PciAddress, Former]  # by function
ByFunction = Mapping[model.PciAddress, str | None]  # a driver, an override


class Untrusted(Exception):
    """Why the folder or a file in it is not believed"""


def recorded(folder: pathlib.Path) -> frozenset[model.PciAddress]:
    """The cards that have a file, of this boot or an earlier one."""
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    found = set()
    for name in names:
        with contextlib.suppress(exception.InvalidPciAddress):
            found.add(model.PciAddress.parse(name.removesuffix(_SUFFIX)))
    return frozenset(found)


def load(folder: pathlib.Path, card: model.PciAddress, roots: Roots) -> Formers:
    """The record of *card* since the host booted, by function; empty where there is none.

    :raises Untrusted: where somebody else could have written it, or it cannot be understood
    """
    with _opened(folder) as folder_fd:
        if folder_fd is None:
            return {}
        path = folder / _name(card)
        try:
            with small_files.opened(_name(card), dir_fd=folder_fd, follow=False) as fd:
                _believe(path, os.fstat(fd))
                content = json.loads(small_files.text(fd))
            if content["boot_id"] != roots.boot_id():
                return {}
            overrides = content.get("overrides", {})
            return {
                model.PciAddress.parse(address): Former(
                    _checked(driver), _checked(overrides.get(address))
                )
                for address, driver in content["functions"].items()
            }
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Untrusted(f"{path} cannot be read: {error.strerror}") from error
        except _NOT_OURS as error:
            raise Untrusted(f"{path} cannot be understood: {error!r}") from error


def save(folder: pathlib.Path, card: model.PciAddress, formers: Formers, roots: Roots) -> None:
    """Replaces the file of *card*; without *formers* there is none afterwards.

    :raises Untrusted: where somebody else could change it
    :raises OSError: where it cannot be written
    """
    if not formers:
        forget(folder, card)
        return
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
    content = {
        "boot_id": roots.boot_id(),
        "functions": {str(address): former.driver for address, former in formers.items()},
        "overrides": {str(a): former.override for a, former in formers.items() if former.override},
    }
    with _opened(folder) as folder_fd:
        new = f".{_name(card)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder_fd), "w") as file:
            json.dump(content, file)
        os.rename(new, _name(card), src_dir_fd=folder_fd, dst_dir_fd=folder_fd)


def forget(folder: pathlib.Path, card: model.PciAddress) -> None:
    """:raises Untrusted: where somebody else's folder is in its place"""
    with _opened(folder) as folder_fd, contextlib.suppress(FileNotFoundError):
        if folder_fd is not None:
            os.unlink(_name(card), dir_fd=folder_fd)


@contextlib.contextmanager
def _opened(folder: pathlib.Path) -> Iterator[int | None]:
    """``None`` where it does not exist.

    The state path is nova's, not root's: a folder that nova put here in place of root's is refused.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(folder, flags)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        raise Untrusted(f"{folder} is not a folder: {error.strerror}") from error
    try:
        _believe(folder, os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def _believe(path: pathlib.Path, status: os.stat_result) -> None:
    reason = trust.distrust(status, os.geteuid())
    if reason:
        raise Untrusted(f"{path} is not believed: {reason}")


def _checked(name: str | None) -> str | None:
    """The name of a driver, checked as it becomes part of a path."""
    if name is not None and not _DRIVER.fullmatch(name):
        raise ValueError(f"{name!r} is no driver")
    return name


def _name(card: model.PciAddress) -> str:
    return f"{card}{_SUFFIX}"
