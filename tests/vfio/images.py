# SPDX-License-Identifier: Apache-2.0
"""What the guests are started from, in Nova's stand-in for Glance.

From :data:`LOOKING` with the programs of :mod:`tests.vfio.carried`, in more memory; from
:data:`UEFI` by OVMF, which needs more, too.
"""

from __future__ import annotations

import pathlib

from nova.tests.fixtures import glance

from lab.vm import system
from tests.vfio import carried, place

_BYTES = 1 << 20
_KERNEL, _INITRAMFS, CONTAINER, _WITH_PROGRAMS, LOOKING, UEFI = (
    f"{number:08d}-0000-4000-8000-000000000000" for number in range(1, 7)
)
# A guest's boot costs 10,000 exits. Either of the last two words spares it 16,000 more, for ports
# by which the kernel asks all slots of 256 buses. noearly: for an AGP bridge, as it takes the
# processor for an old one of AMD's. lastbus: for roots that ACPI does not name.
_COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 tsc=unstable random.trust_cpu=on mitigations=off"
    " pci=noearly,lastbus=0"
)


def describe(images: glance.GlanceFixture) -> None:
    """What the API tells of them."""
    kinds = {
        **dict.fromkeys((_INITRAMFS, _WITH_PROGRAMS), ("ari", "ari")),
        **dict.fromkeys((CONTAINER, LOOKING, UEFI), ("raw", "bare")),
        _KERNEL: ("aki", "aki"),
    }
    for image, (disk, container) in kinds.items():
        form = {"disk_format": disk, "container_format": container, "size": _BYTES}
        plain = {**images.image1, "id": image, "name": disk, "properties": {}}
        images.create(None, {**plain, **form})
    for image, initramfs, words in (
        (images.image1["id"], _INITRAMFS, ""),
        (UEFI, _INITRAMFS, ""),
        (LOOKING, _WITH_PROGRAMS, f" rdinit=/{carried.FIRST}"),
    ):
        images.images[image].update(
            size=_BYTES,
            disk_format="raw",
            container_format="bare",
            properties={
                "kernel_id": _KERNEL,
                "ramdisk_id": initramfs,
                "os_command_line": f"{_COMMAND_LINE}{words}",
            },
        )
    images.images[UEFI]["properties"]["hw_firmware_type"] = "uefi"


def serve(images: glance.GlanceFixture) -> None:
    """And what they are, in the VM, which has the files."""
    describe(images)
    initramfs = pathlib.Path(system.GUEST_INITRAMFS).read_bytes()
    images._imagedata[_KERNEL] = pathlib.Path(system.GUEST_KERNEL).read_bytes()
    images._imagedata[_INITRAMFS] = initramfs
    for image in (images.image1["id"], LOOKING, UEFI):
        images._imagedata[image] = bytes(_BYTES)
    if place.PROGRAMS.exists():
        # The kernel unpacks one after the other.
        images._imagedata[_WITH_PROGRAMS] = initramfs + place.PROGRAMS.read_bytes()
    if place.CONTAINERS_IMAGE.exists():
        images._imagedata[CONTAINER] = place.CONTAINERS_IMAGE.read_bytes()
