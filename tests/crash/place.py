# SPDX-License-Identifier: Apache-2.0
"""How long a run is, how it is told to the process that does it, and what is written where."""

POINTS = "NOVA_GPU_CRASH_POINTS"
SEED = "NOVA_GPU_CRASH_SEED"
PATTERN = "NOVA_GPU_CRASH_PATTERN"
STACKS = ".stacks"  # of a file beside the service's configuration
