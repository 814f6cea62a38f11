# SPDX-License-Identifier: Apache-2.0
"""How much memory this host has."""

from __future__ import annotations

import re

from nova_gpu.host.roots import Roots

_TOTAL = re.compile(r"^MemTotal:\s+(\d+) kB$", re.MULTILINE)


def of_host(roots: Roots) -> int:
    """The host's memory in bytes, 0 where the kernel does not tell"""
    try:
        found = _TOTAL.search((roots.proc / "meminfo").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0
