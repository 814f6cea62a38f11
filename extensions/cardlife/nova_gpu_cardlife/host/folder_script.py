# SPDX-License-Identifier: Apache-2.0
"""The process that reads and writes in the operator's folder, which may hang on a dead file server.

It knows the standard library only. Its input is ``{"folder": PATH, "write": {NAME: TEXT},
"prefixes": [TEXT]}``, its output ``{"read": {NAME: TEXT}, "written": [NAME], "errors": {NAME:
TEXT}}``; an error of the whole folder has the name ``""``.
"""

from __future__ import annotations

import json
import os
import stat
import sys

_LARGEST = 1 << 20


def _write(folder: int, name: str, text: str) -> None:
    """Write the file as a whole: after a crash the old one or the new one exists.

    Another process, which hung before, may go on meanwhile.
    """
    drafts = f".{name}."
    for other in os.listdir(folder):
        if other.startswith(drafts):
            os.unlink(other, dir_fd=folder)
    draft = f"{drafts}{os.getpid()}.nova-gpu"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


def _read(folder: int, name: str) -> str:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is no regular file")
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} bytes")
    return content.decode()


def main() -> None:
    order = json.load(sys.stdin)
    read: dict[str, str] = {}
    written: list[str] = []
    errors: dict[str, str] = {}
    try:
        folder = os.open(order["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name, text in order["write"].items():
            try:
                _write(folder, name, text)
                written.append(name)
            except OSError as error:
                errors[name] = str(error.strerror)
        prefixes = tuple(order["prefixes"])
        for name in sorted(os.listdir(folder)):
            if name.startswith(prefixes) and name.endswith(".json"):
                try:
                    read[name] = _read(folder, name)
                except FileNotFoundError:
                    continue
                except (OSError, ValueError) as error:
                    errors[name] = str(getattr(error, "strerror", None) or error)
    except OSError as error:
        errors[""] = str(error.strerror)
    json.dump({"read": read, "written": written, "errors": errors}, sys.stdout)


if __name__ == "__main__":
    main()
