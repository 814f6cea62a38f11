# SPDX-License-Identifier: Apache-2.0
"""When a guest's cards are given back; what is done to them then has functional tests."""

from __future__ import annotations

import types

from nova.compute import task_states
from oslotest import base

from nova_gpu.virt.lifecycle import releases


class RebuildTest(base.BaseTestCase):
    def test_task_states(self) -> None:
        for state, rebuilding in (
            (task_states.REBUILDING, True),
            (task_states.REBUILD_SPAWNING, True),
            (task_states.DELETING, False),
            (None, False),
        ):
            with self.subTest(state=state):
                instance = types.SimpleNamespace(task_state=state)
                self.assertEqual(rebuilding, releases._is_rebuilding(instance))
