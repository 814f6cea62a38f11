# SPDX-License-Identifier: Apache-2.0
"""Commands that an operator runs on a compute host; they read nova-compute's configuration."""

import warnings

# futurist and oslo.privsep import eventlet, if it is installed, to see whether it has patched
# anything. The user of a command cannot do anything about eventlet's warnings.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
