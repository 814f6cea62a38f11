# SPDX-License-Identifier: Apache-2.0
"""The delivery of vGPUs as virtual functions on which NVIDIA's driver has set a vGPU type."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_utils import versionutils

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Kind
from nova_gpu.host.vgpu import virtual_functions
from nova_gpu.virt.delivery.hostdev_parts import VirtualFunctions

# Since this version libvirt accepts a function with managed='no' whatever VFIO driver it is bound
# to (libvirt's NEWS).
LIBVIRT = (10, 0, 0)


class TypedFunctions(VirtualFunctions):
    """The delivery of virtual functions that NVIDIA's host driver has given a vGPU type."""

    kind = Kind.TYPED
    words = "a virtual function with a type"
    managed = False  # the function stays with the driver that set its type

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        return (
            self._too_old()
            or virtual_functions.typed_obstacle(functions, self._roots)
            or super().obstacle(card, functions)
        )

    def _too_old(self) -> str | None:
        """Return why libvirt cannot give guests a function bound to NVIDIA's driver, else ``None``.

        With an older libvirt a guest's start fails with "must be manually detached from the host".
        """
        libvirt, wanted = self._libvirt_version(), ".".join(map(str, LIBVIRT))
        if libvirt is None:
            return (
                f"its virtual functions need libvirt {wanted} or newer, and this host's libvirt "
                "does not report its version; check that it runs"
            )
        if libvirt < versionutils.convert_version_to_int(LIBVIRT):
            version = versionutils.convert_version_to_str(libvirt)
            return (
                f"libvirt {version} starts no guest with virtual functions that stay with NVIDIA's "
                f"driver; install {wanted} or newer"
            )
        return None
