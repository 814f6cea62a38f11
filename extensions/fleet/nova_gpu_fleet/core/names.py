# SPDX-License-Identifier: Apache-2.0
"""All strings that this extension exchanges with Nova and Placement."""

from __future__ import annotations

# On a compute node that an administrator empties of instances with GPUs: it gets no new one. The
# operator sets it, and the driver keeps it.
DRAINED = "CUSTOM_GPU_DRAINED"
# On a compute node whose GPUs preemptible instances do not get until the time in its name.
KEPT_UNTIL = "CUSTOM_GPU_KEPT_UNTIL_"

# The words of the flavor.
MOVE = "gpu:move"
ON_STOP_MOVE = "gpu:on_stop_move"
PREEMPTIBLE = "gpu:preemptible"
ON_PREEMPT = "gpu:on_preempt"

# Keys of an instance's metadata, which its guest reads: when its GPUs are taken, and for which
# servers (uuids with commas) or for what else.
PREEMPT_AT, PREEMPT_FOR = "gpu:preempt_at", "gpu:preempt_for"
