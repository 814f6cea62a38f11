# SPDX-License-Identifier: Apache-2.0
"""Files of NVIDIA's driver in /proc about itself and its cards."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping

from nova_gpu.core.model import PciAddress
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.16  Tue ...", of the open module
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build ..."
# (kernel-open/nvidia/nv-procfs.c and nv-compiler.h)
_VERSION = re.compile(r"^NVRM version:.*?\s([0-9]+(?:\.[0-9]+)+)\s", re.MULTILINE)


def version(roots: Roots) -> str | None:
    """Return the version of NVIDIA's driver, on a vGPU host the vGPU manager's: ``550.54.16``."""
    match = _VERSION.search(_text(roots.proc / "driver/nvidia/version"))
    return match[1] if match else None


def card(address: PciAddress, roots: Roots) -> Mapping[str, str]:
    """Return the fields of the card's file ``information``: ``Model``, ``Device Minor`` and others.

    It has none if NVIDIA's driver does not have the card. The value of ``GPU UUID`` consists of
    question marks until the card is initialised.
    """
    return fields(roots.proc / f"driver/nvidia/gpus/{address}/information")


def device_file_mode(roots: Roots) -> int | None:
    """Return the file mode that nvidia-modprobe sets on NVIDIA's device nodes whenever it runs.

    Return ``None`` if it leaves the modes alone, or the driver does not report it. The mode is a
    decimal number in the driver's parameters (kernel-open/nvidia/nv-procfs.c), which
    nvidia-modprobe reads (modprobe-utils/nvidia-modprobe-utils.c, init_device_file_parameters).
    """
    params = fields(roots.proc / "driver/nvidia/params")
    mode = params.get("DeviceFileMode", "")
    if params.get("ModifyDeviceFiles") == "0" or not re.fullmatch("[0-9]{1,9}", mode):
        return None
    return int(mode) & 0o777


def fields(path: pathlib.Path) -> Mapping[str, str]:
    """Return the lines ``name: value`` of the file at *path*, ``{}`` if it cannot be read."""
    lines = (line.partition(":") for line in _text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _text(path: pathlib.Path) -> str:
    try:
        return files.read(path)
    except (OSError, ValueError):
        return ""
