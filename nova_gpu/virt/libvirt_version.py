# SPDX-License-Identifier: Apache-2.0
"""The versions of the host's libvirt and QEMU, which decide what guests the host can start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import libvirt

from nova_gpu.conf import novas


class LibvirtVersion:
    """The version of libvirt, or that of QEMU, as libvirt reports it.

    Call the object for the version as one number, 10000000 for 10.0.0. If libvirt does not answer,
    the call returns its last answer, or ``None`` before the first one.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._known: int | None = None

    def __call__(self) -> int | None:
        with contextlib.suppress(libvirt.libvirtError, *novas.raised("HypervisorUnavailable")):
            self._known = self._ask()
        return self._known
