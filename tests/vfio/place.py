# SPDX-License-Identifier: Apache-2.0
"""What the VM and the tests outside of it both know."""

from __future__ import annotations

import pathlib

# The environment's name for what a connection has to know.
KEY = "NOVA_GPU_KEY"

# The tests of whole cards and of the host, some of which need no cloud, and of cards in parts
TESTS = ("tests/vfio", "tests/vgpu")

# In the VM
STATE = pathlib.Path("/var/tmp/nova")
INSTANCES = STATE / "instances"
CONFIGURATION = STATE / "nova.conf"
LOG = pathlib.Path("/out/nova.log")
# What cleans a card between two guests: a link to what a test wants
CLEAN = pathlib.Path("/usr/local/sbin/clean-gpu")
CONTAINERS = pathlib.Path("/var/tmp/containers")
CONTAINERS_IMAGE = CONTAINERS / "image.raw"

# What Nova and others print there is not the tests' output. This file is in the folder of the run.
STDERR = "stderr"
