# SPDX-License-Identifier: Apache-2.0
"""Reads the kernel's log: a script, run by :mod:`nova_gpu.host.nvidia.kernel_log`.

It is a process of its own because only one that is root and has just been executed may read the log
where ``kernel.dmesg_restrict`` is set: privsep's has not the capability. It needs nothing of this
package. Its arguments are the file, which never ends but is read to what is there now, and the
number of the last record that is known. What it prints is JSON::

    {"last": 1234, "lines": [[1231, "NVRM: Xid (PCI:0000:3b:00): 79, ..."], ...]}

``last`` is the newest record of any kind, null where that is the known one. Where it is older than
that, what is known is not of this log, and all of it is news. The lines are those of NVIDIA's
driver about Xids. A record (Documentation/ABI/testing/dev-kmsg) begins with
``priority and facility,sequence,microseconds,flags;``. What processes write there has another
facility than the kernel's 0 (kernel/printk/printk.c: devkmsg_write), so no process can forge a
line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

_RECORD = 8192  # CONSOLE_EXT_LOG_MAX
_XID = "NVRM: Xid ("


def _lines(path: str) -> Iterator[str]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    rest = ""
    while True:
        try:
            read = os.read(fd, _RECORD)
        except BrokenPipeError:
            continue  # records were overwritten while we read; the next read is of what is left
        except BlockingIOError:
            break
        if not read:
            break
        *lines, rest = (rest + read.decode(errors="replace")).split("\n")
        yield from lines


def new(path: str, known: int) -> tuple[int | None, list[tuple[int, str]]]:
    """Return the number of the newest record, and the Xids after record *known* with theirs.

    If the newest is *known*, return ``None`` and no Xids; if it is older, return all Xids.

    :raises OSError: where the log cannot be read
    """
    newest, messages = None, []
    for line in _lines(path):
        head, _, text = line.partition(";")
        numbers = head.split(",")
        try:
            facility, sequence = int(numbers[0]) >> 3, int(numbers[1])
        except (ValueError, IndexError):
            continue  # a record's further lines, which begin with a blank
        newest = sequence
        if facility == 0 and text.startswith(_XID):
            messages.append((sequence, text))
    if newest is None or newest == known:
        return None, []
    return newest, [message for message in messages if newest < known or message[0] > known]


if __name__ == "__main__":
    try:
        newest, xids = new(sys.argv[1], int(sys.argv[2]))
    except OSError as error:
        sys.exit(str(error))
    print(json.dumps({"last": newest, "lines": xids}))
