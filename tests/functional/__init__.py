# SPDX-License-Identifier: Apache-2.0
"""Nova's API, scheduler, conductor and compute and Placement in one process."""

import importlib
import importlib.metadata
import os

NOVA = int(importlib.metadata.version("nova").partition(".")[0])
# Since 2026.2 (34) Nova's services run on native threads. Its tests do so only when told, before
# anything else of Nova is imported.
if NOVA >= 34:
    os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")

importlib.import_module("nova.tests.functional")
# Before anything of ours, as in a service: where Nova runs on eventlet this patches threading, and
# a lock that was made before would stop all green threads.
importlib.import_module("nova.test")
economy = importlib.import_module("tests.fixtures.economy")
economy.economize()
economy.economize_apis()
checkout = importlib.import_module("tests.fixtures.checkout")
__path__ += checkout.folders(__name__)
load_tests = checkout.loader(__name__)
