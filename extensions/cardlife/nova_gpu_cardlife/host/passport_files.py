# SPDX-License-Identifier: Apache-2.0
"""A host's own files about the passports of its cards, on its disk, below ``gpu-passports``.

``own`` has the host's records, which nova-compute also writes to the operator's folder. ``met`` has
the records of other hosts about these cards, as last read there. ``notes`` has what operators wrote
with ``nova-gpu passport``, until nova-compute has it in a record. The folders are made by
nova-compute.
"""

from __future__ import annotations

import contextlib
import pathlib
import time

from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import files
from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.core.passport import Record

_MODE = 0o644
OWN, MET, _NOTES = "own", "met", "notes"


def make(folder: pathlib.Path) -> bool:
    """Make the folders; return whether there were none, because passports are new on this host.

    :raises OSError: if they cannot be made
    """
    is_new = not folder.exists()
    for path in (folder, *(folder / part for part in (OWN, MET, _NOTES))):
        path.mkdir(mode=0o755, exist_ok=True)
    return is_new


def read(folder: pathlib.Path, part: str) -> tuple[dict[str, Record], dict[str, str]]:
    """Return the records of *part* by the names of their files, and why others are no records.

    :raises OSError: if a file or the folder cannot be read
    """
    records, errors = {}, {}
    for name in files.names(folder / part):
        try:
            records[name] = passport.parse(files.read_json(folder / part / name))
        except FileNotFoundError:
            continue
        except ValueError as error:
            errors[name] = str(error)
    return records, errors


def write(folder: pathlib.Path, part: str, name: str, record: Record) -> None:
    """Write the record.

    :raises OSError: if it cannot be written
    """
    files.write_json(folder / part / name, passport.dump(record), mode=_MODE)


def put_note(folder: pathlib.Path, card: PciAddress, kind: str, text: str) -> None:
    """Write an operator's note about the card, of one of ``passport.NOTES``.

    :raises OSError: if it cannot be written
    """
    name = f"{card}@{time.time_ns()}.json"
    files.write_json(folder / _NOTES / name, {"kind": kind, "text": text}, mode=_MODE)


def notes(folder: pathlib.Path) -> list[tuple[pathlib.Path, str, str, str]]:
    """Return the notes that no record has yet: file, address of the card, kind and text.

    :raises OSError: if they cannot be read
    """
    pending = []
    for name in files.names(folder / _NOTES):
        path = folder / _NOTES / name
        with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
            content = files.read_json(path)
            if content["kind"] in passport.NOTES:
                pending.append(
                    (path, name.partition("@")[0], content["kind"], str(content["text"]))
                )
    return pending
