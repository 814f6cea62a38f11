# SPDX-License-Identifier: Apache-2.0
"""The version of NVIDIA's driver on this host, which on a vGPU host is that of the vGPU manager."""

from __future__ import annotations

import re

from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.16  Tue ...", of the open module
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build ..."
# (kernel-open/nvidia/nv-procfs.c and nv-compiler.h)
_VERSION = re.compile(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+)+)\s", re.MULTILINE)


def driver(roots: Roots) -> str | None:
    """``550.54.16``, ``None`` where the driver is not loaded or does not tell"""
    try:
        text = files.read(roots.proc / "driver/nvidia/version")
    except (OSError, ValueError):
        return None
    match = _VERSION.search(text)
    return match[1] if match else None
