# SPDX-License-Identifier: Apache-2.0
"""Script that reads the kernel's log, run by :mod:`nova_gpu.host.nvidia.kernel_log`.

It runs as a process of its own because, where ``kernel.dmesg_restrict`` is set, the process must
have been started as root: the privsep daemon lacks the capability. It imports nothing of this
package. Its arguments are the file (/dev/kmsg), which it reads up to the newest record, and the
number of the last record that the caller has read. It prints JSON::

    {"last": 1234, "lines": ["NVRM: Xid (PCI:0000:3b:00): 79, ...", ...]}

``last`` is the number of the newest record of any kind, null if the caller has read that already.
If it is lower than the caller's number, the host has booted since, and all records are new. The
lines are Xids of NVIDIA's driver. A record (Documentation/ABI/testing/dev-kmsg) begins with
``priority and facility,sequence,microseconds,flags;``. Records that processes write have another
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


def new(path: str, known: int) -> tuple[int | None, list[str]]:
    """Return the number of the newest record, and the lines about Xids after record *known*.

    If the newest record is *known*, return ``None`` and none; if its number is lower, return all.
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
    return newest, [text for number, text in messages if newest < known or number > known]


if __name__ == "__main__":
    try:
        newest, xids = new(sys.argv[1], int(sys.argv[2]))
    except OSError as error:
        sys.exit(str(error))
    print(json.dumps({"last": newest, "lines": xids}))
