# SPDX-License-Identifier: Apache-2.0
"""The drivers that a card's functions had before a guest got the card: one file per card.

Only root writes the files, and only files of root are trusted. All users may see which cards have
one. A boot of the host binds drivers anew, so files from an earlier boot are void.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
from collections.abc import Mapping

from nova_gpu.core import exception, model
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

_DRIVER = re.compile(r"[\w-]+", re.ASCII)
# The errors of parsing a file that :func:`save` did not write
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, exception.InvalidPciAddress)


@dataclasses.dataclass(frozen=True, slots=True)
class Former:
    """The driver that one function had before it was bound to vfio-pci.

    ``driver`` is ``None`` if it had none. ``override`` is what an operator had written to the
    function's driver_override; it may name another driver.
    """

    driver: str | None
    override: str | None = None


Formers = Mapping[model.PciAddress, Former]  # by function
ByFunction = Mapping[model.PciAddress, str | None]  # a driver, an override


def recorded(folder: pathlib.Path) -> frozenset[model.PciAddress]:
    """Return the cards that have a file, from this boot or an earlier one."""
    try:
        return frozenset(files.cards(folder))
    except OSError:
        return frozenset()


def load(folder: pathlib.Path, card: model.PciAddress, roots: Roots) -> Formers:
    """Return the former drivers of *card* by function; empty without a record from this boot.

    :raises Untrusted: if another user could have written the file, or it cannot be parsed
    """
    path = files.of_card(folder, card)
    try:
        content = files.read_json(path, trusted=True)
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
        raise files.Untrusted(f"{path} cannot be read: {error.strerror}") from error
    except _NOT_OURS as error:
        raise files.Untrusted(f"{path} cannot be understood: {error!r}") from error


def save(folder: pathlib.Path, card: model.PciAddress, formers: Formers, roots: Roots) -> None:
    """Replace the file of *card*; without *formers* remove it.

    :raises Untrusted: if another user could change it
    :raises OSError: if it cannot be written
    """
    if not formers:
        forget(folder, card)
        return
    content = {
        "boot_id": roots.boot_id(),
        "functions": {str(address): former.driver for address, former in formers.items()},
        "overrides": {str(a): former.override for a, former in formers.items() if former.override},
    }
    with contextlib.suppress(FileExistsError):  # if only as a link, which is not believed
        folder.mkdir(mode=0o755)
    files.write_json(files.of_card(folder, card), content, mode=0o600, trusted=True)


def forget(folder: pathlib.Path, card: model.PciAddress) -> None:
    """Remove the file of *card*, if it exists.

    :raises Untrusted: if the folder belongs to another user
    """
    files.remove(files.of_card(folder, card), trusted=True)


def _checked(name: str | None) -> str | None:
    """Return *name* if it can be a driver's, as it becomes part of a path.

    :raises ValueError: if it cannot
    """
    if name is not None and not _DRIVER.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a driver")
    return name
