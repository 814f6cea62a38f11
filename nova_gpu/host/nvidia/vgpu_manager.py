# SPDX-License-Identifier: Apache-2.0
"""The journal of NVIDIA's vGPU manager, the only place with its reasons for refusing a vGPU.

QEMU reports nothing but an errno then, and the kernel's log a status without a text
(mbilker/vgpu_unlock-rs#49, NVIDIA/nvidia-installer#15).
"""

from __future__ import annotations

from nova_gpu.core import printable
from nova_gpu.host import child_process

_UNIT = "nvidia-vgpu-mgr"
# How many entries are read, and how many of those with an error are returned: the last ones
_READ, _RETURNED = 50, 3


def errors(since: float, timeout_s: float) -> list[str]:
    """Return the last errors in the journal since that time, or its last entries without any.

    An entry may name guests. Needs root, and the host's journal.

    :param since: the time in seconds of Unix
    :raises nova_gpu.host.child_process.Failed: if the journal cannot be read in time
    """
    command = ["journalctl", f"--unit={_UNIT}", f"--since=@{int(since)}", f"--lines={_READ}"]
    output = child_process.run([*command, "--output=cat", "--no-pager"], timeout_s)
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip(" -")]
    # "-- No entries --"
    entries = [printable.printable(line) for line in lines if not line.startswith("-- ")]
    return ([line for line in entries if "error" in line.lower()] or entries)[-_RETURNED:]
