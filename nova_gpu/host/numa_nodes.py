# SPDX-License-Identifier: Apache-2.0
"""The NUMA nodes of this host in sysfs."""

from __future__ import annotations

import contextlib

from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots


def cpulist(node: int, roots: Roots) -> str:
    """The processors of the node that are online, as the kernel lists them (``0-7,16-23``); empty
    of a node without, and where the kernel does not tell."""
    with contextlib.suppress(OSError):
        return sysfs.attribute(f"{roots.sysfs}/devices/system/node/node{node}", "cpulist")
    return ""
