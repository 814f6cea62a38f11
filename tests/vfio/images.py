# SPDX-License-Identifier: Apache-2.0
"""What the guests are started from, in Nova's stand-in for Glance."""

from __future__ import annotations

import pathlib

from nova.tests.fixtures import glance

from tests.cloud import base
from tools.vfiolab import system

_BYTES = 1 << 20
_KERNEL, _INITRAMFS = (f"{number:08d}-0000-4000-8000-000000000000" for number in (1, 2))
_COMMAND_LINE = "console=ttyS0 quiet panic=-1 tsc=unstable random.trust_cpu=on mitigations=off"


def describe(images: glance.GlanceFixture) -> None:
    """What the API tells of them."""
    for image, kind in ((_KERNEL, "aki"), (_INITRAMFS, "ari")):
        form = {"disk_format": kind, "container_format": kind, "size": _BYTES}
        plain = {**images.image1, "id": image, "name": kind, "properties": {}}
        images.create(None, {**plain, **form})
    images.images[base.IMAGE].update(
        size=_BYTES,
        disk_format="raw",
        container_format="bare",
        properties={
            "kernel_id": _KERNEL,
            "ramdisk_id": _INITRAMFS,
            "os_command_line": _COMMAND_LINE,
        },
    )


def serve(images: glance.GlanceFixture) -> None:
    """And what they are, in the VM, which has the files."""
    describe(images)
    images._imagedata[_KERNEL] = pathlib.Path(system.GUEST_KERNEL).read_bytes()
    images._imagedata[_INITRAMFS] = pathlib.Path(system.GUEST_INITRAMFS).read_bytes()
    images._imagedata[base.IMAGE] = bytes(_BYTES)
