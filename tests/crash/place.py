# SPDX-License-Identifier: Apache-2.0
"""How long a run is, and how it is told to the process that does it."""

POINTS = "NOVA_GPU_CRASH_POINTS"
SEED = "NOVA_GPU_CRASH_SEED"
PATTERN = "NOVA_GPU_CRASH_PATTERN"
