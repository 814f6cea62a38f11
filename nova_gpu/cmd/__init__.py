# SPDX-License-Identifier: Apache-2.0
"""Commands for the compute host. Each reads nova-compute's configuration."""

import warnings

# futurist and oslo.privsep import eventlet, where it is installed, to see whether anything was
# patched by it. Nobody who runs a command can do anything about what eventlet says then.
warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
