# SPDX-License-Identifier: Apache-2.0
"""The versions of the host's libvirt and of its QEMU: what guests it can start depends on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import libvirt

from nova_gpu.conf import novas


class LibvirtVersion:
    """The last version of libvirt, or of its hypervisor, as it counts: 10000000 for 10.0.0.

    ``None`` before it has answered once. While it is away nothing is to change for that.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._known: int | None = None

    def __call__(self) -> int | None:
        with contextlib.suppress(libvirt.libvirtError, *novas.raised("HypervisorUnavailable")):
            self._known = self._ask()
        return self._known
