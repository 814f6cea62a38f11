# SPDX-License-Identifier: Apache-2.0
"""Files written below a root that can be taken back: what was there before is kept.

What is kept is one file below the same root, written before anything is changed.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import jsonschema

from nova_gpu.core import exception
from nova_gpu.core.boot_files import File
from nova_gpu.host.state import files as state

_KEPT = "var/lib/nova-gpu/prepare.json"
# It has the former contents of boot files, in base64.
_LARGEST = 16 << 20

_PATH = {"type": "string", "pattern": r"\A[^\x00\ud800-\udfff]*\Z"}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 2**32 - 2}
_BEFORE_SCHEMA = {
    "type": "object",
    "properties": {
        "content": {
            "type": "string",
            "pattern": r"\A(?:[A-Za-z0-9+/]{4})*[A-Za-z0-9+/]{0,3}={0,2}\Z",
        },
        "mode": {**_NUMBER, "maximum": 0o7777},
        "uid": _NUMBER,
        "gid": _NUMBER,
        "mtime_ns": {**_NUMBER, "maximum": 2**63 - 1},
    },
    "required": ["content", "mode", "uid", "gid", "mtime_ns"],
    "additionalProperties": False,
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "files": {
            "type": "object",
            "propertyNames": _PATH,
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "before": {"oneOf": [{"type": "null"}, _BEFORE_SCHEMA]},
                    "written": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["before", "written"],
            },
        },
        "folders": {"type": "array", "items": _PATH},
    },
    "required": ["files", "folders"],
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Before:
    """A file as it was: its contents in base64, and what stat says of it."""

    content: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """``before`` ``None``: there was no file. ``written`` are the hashes of what we wrote, several
    only where writing was cut off."""

    before: _Before | None
    written: tuple[str, ...]


def changes(files: Iterable[File], root: pathlib.Path) -> list[str]:
    """The paths that :func:`apply` would change.

    :raises FileChanged: where somebody has changed one that we wrote
    """
    wanted = {file.path: file for file in files}
    entries, _ = _load(root)
    _refuse_changed(entries, root)
    stale = entries.keys() - wanted.keys()
    new = {path for path, file in wanted.items() if not _is_written(file, root)}
    return sorted(stale | new)


def apply(files: Iterable[File], root: pathlib.Path) -> list[str]:
    """Writes *files*, takes back those written before that are not among them, and returns the
    paths that changed. A second time nothing does.

    :raises FileChanged: where somebody has changed one that we wrote; then nothing is changed
    :raises OSError: where one cannot be written; :func:`undo` takes back the others
    """
    wanted = {file.path: file for file in files}
    changed = changes(wanted.values(), root)
    entries, folders = _load(root)
    stale = {path: entry for path, entry in entries.items() if path not in wanted}
    kept = {path: entry for path, entry in entries.items() if path in wanted}
    for path, file in wanted.items():
        old = kept.get(path) or _Entry(_before(root / path.lstrip("/")), ())
        kept[path] = _Entry(old.before, (_hash(file.text.encode()), *old.written))
    folders = list(dict.fromkeys([*folders, *_missing_folders(wanted, root)]))
    if not changed:
        return []
    _save(root, {**stale, **kept}, folders)
    for path, entry in stale.items():
        _take_back(root / path.lstrip("/"), entry)
    for path in changed:
        if path in wanted:
            _write(root / path.lstrip("/"), wanted[path].text.encode(), wanted[path].mode)
    done = {path: dataclasses.replace(e, written=e.written[:1]) for path, e in kept.items()}
    _save(root, done, folders)
    return changed


def undo(root: pathlib.Path) -> list[str]:
    """Has everything as it was before the first :func:`apply`, and returns the paths that changed.

    :raises FileChanged: where somebody has changed a file that we wrote; then nothing is changed
    """
    entries, folders = _load(root)
    _refuse_changed(entries, root)
    for path, entry in entries.items():
        _take_back(root / path.lstrip("/"), entry)
    kept = root / _KEPT
    kept.unlink(missing_ok=True)
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # somebody else's files are in it now
            (root / folder).rmdir()
    return sorted(entries)


def _refuse_changed(entries: dict[str, _Entry], root: pathlib.Path) -> None:
    """A file may be as we wrote it, as it was before us where a run was cut off, or gone."""
    for path, entry in entries.items():
        now = _before(root / path.lstrip("/"))
        if now is None or now == entry.before:
            continue
        if _hash(base64.b64decode(now.content)) not in entry.written:
            raise exception.FileChanged(path)


def _is_written(file: File, root: pathlib.Path) -> bool:
    now = _before(root / file.path.lstrip("/"))
    return now is not None and (now.content, now.mode) == (_encoded(file.text.encode()), file.mode)


def _take_back(path: pathlib.Path, entry: _Entry) -> None:
    before = entry.before
    if before is None:
        path.unlink(missing_ok=True)
    else:
        _write(path, base64.b64decode(before.content), before.mode)
        os.chown(path, before.uid, before.gid)
        os.utime(path, ns=(before.mtime_ns, before.mtime_ns))


def _before(path: pathlib.Path) -> _Before | None:
    try:
        content, status = path.read_bytes(), path.stat()
    except FileNotFoundError:
        return None
    mode = status.st_mode & 0o7777
    return _Before(_encoded(content), mode, status.st_uid, status.st_gid, status.st_mtime_ns)


def _write(path: pathlib.Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state.write(path, content, mode=mode)


def _missing_folders(paths: Iterable[str], root: pathlib.Path) -> list[str]:
    """The folders that writing makes, the outer ones first"""
    relative = [pathlib.PurePath(path.lstrip("/")) for path in (*paths, f"/{_KEPT}")]
    parents = {str(folder) for path in relative for folder in path.parents}
    return sorted(folder for folder in parents if not (root / folder).is_dir())


def _load(root: pathlib.Path) -> tuple[dict[str, _Entry], list[str]]:
    """:raises InvalidRecord: where it is not as :func:`_save` writes it"""
    try:
        content: dict[str, Any] = state.read_json(root / _KEPT, largest=_LARGEST)
        jsonschema.validate(content, _SCHEMA, jsonschema.Draft202012Validator)
    except FileNotFoundError:
        return {}, []
    except jsonschema.ValidationError as error:
        raise exception.InvalidRecord(str(root / _KEPT), error.message) from error
    except (OSError, ValueError) as error:
        raise exception.InvalidRecord(str(root / _KEPT), str(error)) from error
    entries = {
        path: _Entry(
            _Before(**entry["before"]) if entry["before"] else None, tuple(entry["written"])
        )
        for path, entry in content["files"].items()
    }
    return entries, content["folders"]


def _save(root: pathlib.Path, entries: dict[str, _Entry], folders: list[str]) -> None:
    files = {path: dataclasses.asdict(entry) for path, entry in entries.items()}
    path = root / _KEPT
    path.parent.mkdir(parents=True, exist_ok=True)
    state.write_json(path, {"files": files, "folders": folders}, mode=0o600, indent=1)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
