# SPDX-License-Identifier: Apache-2.0
"""Where a run of the suite is: its folder, its guests' image, its hosts' GPUs."""

from __future__ import annotations

import os
import pathlib

from lab.cloud import nodes
from tests.fixtures import nvidia

FOLDER = "NOVA_GPU_LXC_FOLDER"
# Why there is no strace, if there is none
NOT_INSTALLED = "NOVA_GPU_LXC_NOT_INSTALLED"

# The hosts of machines/fermi-8.yaml and two-architectures.yaml, their cards by address. The minors
# are not in that order: the driver found the second socket first.
GPUS = tuple(f"0000:{bus}:00.0" for bus in ("04", "05", "08", "09", "84", "85", "88", "89"))
MINORS = (4, 5, 6, 7, 0, 1, 2, 3)
# Of mig/config and mig/monitor, and of the first card of machines/h200-8.yaml two MIG instances.
INSTANCES = (9, 10)
CAPS = (1, 2, *(nvidia.cap_minor(0, gi, *ci) for gi in INSTANCES for ci in ((), (0,))))
SHARED = ("nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")


def node(gpu: int) -> nodes.Node:
    """The device node of the card with that index in :data:`GPUS`."""
    return nodes.pretend_nvidia([MINORS[gpu]])[0]


def folder() -> pathlib.Path:
    """:raises KeyError: outside of ``python -m tests.lxc``"""
    return pathlib.Path(os.environ[FOLDER])
