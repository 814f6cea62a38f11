# SPDX-License-Identifier: Apache-2.0
"""The versions of the host's libvirt and QEMU, which decide what guests the host can start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import libvirt

from nova_gpu.conf import novas


class LibvirtVersion:
    """The version that libvirt last reported of itself or of its hypervisor.

    Call the object for the version as one number, 10000000 for 10.0.0. It is ``None`` before the
    first answer. While libvirt does not answer, the last version stays in force.

    :param ask: read the version from libvirt
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._known: int | None = None

    def __call__(self) -> int | None:
        with contextlib.suppress(libvirt.libvirtError, *novas.raised("HypervisorUnavailable")):
            self._known = self._ask()
        return self._known
