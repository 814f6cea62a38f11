# SPDX-License-Identifier: Apache-2.0
"""What the guests are started from, in Nova's stand-in for Glance.

From :data:`UEFI` by OVMF, which needs more memory.
"""

from __future__ import annotations

import pathlib

from nova.tests.fixtures import glance

from lab.vm import GUEST_COMMAND_LINE, system
from tests.vfio import place

_BYTES = 1 << 20
_KERNEL, _INITRAMFS, CONTAINER, UEFI = (
    f"{number:08d}-0000-4000-8000-000000000000" for number in range(1, 5)
)


def describe(images: glance.GlanceFixture) -> None:
    """What the API tells of them."""
    kinds = {
        _INITRAMFS: ("ari", "ari"),
        **dict.fromkeys((CONTAINER, UEFI), ("raw", "bare")),
        _KERNEL: ("aki", "aki"),
    }
    for image, (disk, container) in kinds.items():
        form = {"disk_format": disk, "container_format": container, "size": _BYTES}
        plain = {**images.image1, "id": image, "name": disk, "properties": {}}
        images.create(None, {**plain, **form})
    for image in (images.image1["id"], UEFI):
        images.images[image].update(
            size=_BYTES,
            disk_format="raw",
            container_format="bare",
            properties={
                "kernel_id": _KERNEL,
                "ramdisk_id": _INITRAMFS,
                "os_command_line": GUEST_COMMAND_LINE,
            },
        )
    images.images[UEFI]["properties"]["hw_firmware_type"] = "uefi"


def serve(images: glance.GlanceFixture) -> None:
    """And what they are, in the VM, which has the files."""
    describe(images)
    images._imagedata[_KERNEL] = pathlib.Path(system.GUEST_KERNEL).read_bytes()
    images._imagedata[_INITRAMFS] = pathlib.Path(system.GUEST_INITRAMFS).read_bytes()
    for image in (images.image1["id"], UEFI):
        images._imagedata[image] = bytes(_BYTES)
    if place.CONTAINERS_IMAGE.exists():
        images._imagedata[CONTAINER] = place.CONTAINERS_IMAGE.read_bytes()
