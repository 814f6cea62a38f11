# SPDX-License-Identifier: Apache-2.0
"""Nova's API, scheduler, conductor and compute and Placement in one process."""

import importlib.metadata
import os

# Since 2026.2 (34) Nova's services run on native threads. Its tests do so only when told, before
# anything else of Nova is imported.
if int(importlib.metadata.version("nova").partition(".")[0]) >= 34:
    os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")

import nova.tests.functional  # noqa: F401
