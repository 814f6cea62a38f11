# SPDX-License-Identifier: Apache-2.0
"""Xid errors that NVIDIA's driver reported in the kernel's log.

The log has all Xids since the host booted. NVML reports only those that occur while a process waits
for them ("All events that occurred before this call are not recorded", nvmlDeviceRegisterEvents),
and that process would have to keep the cards open all the time.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable

from nova_gpu.core import exception, json_text, model
from nova_gpu.host import child_process
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

_SCRIPT = child_process.source(pathlib.Path(__file__).with_name("kmsg.py"))

# "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."; drivers
# before 2020 wrote "Xid (0000:3b:00)", and pid and name are not always there. Of a MIG instance it
# is "Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00)", the second not of what befell all of a GPU instance
# (open-gpu-kernel-modules, src/nvidia/src/kernel/gpu/rc/kernel_rc.c).
_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<slot>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.0)?"
    r"(?: GPU-I:(?P<gpu_instance>\d{1,4})(?: GPU-CI:(?P<compute_instance>\d{1,2}))?)?\): "
    r"(?P<code>\d+)(?:, (?P<text>.*))?",
    re.IGNORECASE,
)
# The process belongs to a tenant, and others may read the reason.
_PROCESS = re.compile(r"(?:pid='?[^,]*'?|name=[^,]*), ?")
_TEXT_LENGTH = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Xid:
    """An Xid error of a card or of a MIG instance.

    ``code`` is its number in NVIDIA's Xid catalog. ``text`` is the driver's message without the
    name and pid of the tenant's process. For a MIG instance ``gpu_instance`` is set and, if only
    one compute instance is affected, ``compute_instance``.
    """

    address: model.PciAddress
    code: int
    text: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Position:
    """The last record that was read of the kernel's log of one boot.

    ``sequence`` is the number that the kernel has given to the record.
    """

    boot_id: str
    sequence: int


def read(known: int, roots: Roots, timeout_s: float) -> tuple[int, list[str]]:
    """Return the number of the log's newest record, and the lines about Xids after record *known*.

    If the newest record has a lower number than *known*, the host has booted since, and the lines
    about all Xids are returned. Needs root if ``kernel.dmesg_restrict`` is set.

    :raises KernelLogUnreadable: if the log cannot be read in time
    """
    path = str(roots.dev / "kmsg")
    try:
        output = child_process.run(child_process.script(_SCRIPT, path, str(known)), timeout_s)
    except child_process.Failed as error:
        raise exception.KernelLogUnreadable(path, f"the process that reads it {error}") from error
    answer = json_text.parse(output)
    return known if answer["last"] is None else answer["last"], answer["lines"]


def parse(lines: Iterable[str]) -> list[Xid]:
    """Return the Xids in *lines*, which :func:`read` has returned; skip those without an Xid."""
    matches = filter(None, map(_LINE.match, lines))
    return [
        Xid(
            model.PciAddress.parse(f"{match['slot']}.0"),
            int(match["code"]),
            _PROCESS.sub("", match["text"] or "").strip()[:_TEXT_LENGTH].rstrip(". "),
            _number(match["gpu_instance"]),
            _number(match["compute_instance"]),
        )
        for match in matches
    ]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def load(path: pathlib.Path) -> Position | None:
    """Return the position in the file at *path*, ``None`` if the file has no valid one."""
    try:
        fields = files.read_json(path)
        return Position(str(fields["boot_id"]), int(fields["sequence"]))
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError):
        return None


def save(path: pathlib.Path, position: Position) -> None:
    """Write the position to the file at *path*."""
    files.write_json(path, dataclasses.asdict(position))
