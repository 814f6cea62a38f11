# SPDX-License-Identifier: Apache-2.0
"""Records of the drivers that a card's functions had before vfio-pci: one file for each card.

Only root writes the files, and root trusts no other user's. All users may see which cards have one.
A boot of the host binds drivers anew, so a file from an earlier boot is ignored.
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
    """The driver that one PCI function had before it was bound to vfio-pci.

    ``driver`` is ``None`` if it had none. ``override`` is the former value of the function's
    driver_override, ``None`` if it was empty; it may name another driver than ``driver``.
    """

    driver: str | None
    override: str | None = None


Formers = Mapping[model.PciAddress, Former]  # by function
ByFunction = Mapping[model.PciAddress, str | None]  # a driver, an override


def recorded(folder: pathlib.Path) -> frozenset[model.PciAddress]:
    """Return the cards that have a record, even from an earlier boot; none if it is unknown."""
    try:
        return frozenset(files.cards(folder))
    except OSError:
        return frozenset()


def load(folder: pathlib.Path, card: model.PciAddress, roots: Roots) -> Formers:
    """Return the former drivers of the functions of *card*; empty without a record of this boot.

    :raises Untrusted: if another user could have written the file, or it cannot be read or parsed
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
    """Record the former drivers of the functions of *card*; if there are none, remove the file.

    :raises Untrusted: if another user could change the folder
    :raises OSError: if the file cannot be written
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
    """Remove the record of *card*, if it exists.

    :raises Untrusted: if another user could change the folder
    """
    files.remove(files.of_card(folder, card), trusted=True)


def _checked(name: str | None) -> str | None:
    # It becomes part of a path.
    if name is not None and not _DRIVER.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a driver")
    return name
