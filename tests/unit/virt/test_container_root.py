# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import types
from typing import Any

from nova import exception as nova_exception
from nova.compute import power_state
from oslotest import base

from nova_gpu.virt import container_root


class _Driver:
    """Of Nova's driver what is asked here: the state of one guest, or that there is none."""

    def __init__(self, state: int | None) -> None:
        self._state = state

    def get_info(self, instance: Any) -> Any:
        if self._state is None:
            raise nova_exception.InstanceNotFound(instance_id=instance.uuid)
        return types.SimpleNamespace(state=self._state)


class InUseTest(base.BaseTestCase):
    def _is_in_use(self, state: int | None) -> bool:
        instance = types.SimpleNamespace(uuid="6f70656e-7374-4163-8b20-342065766572")
        return container_root.is_in_use(_Driver(state), instance)

    def test_while_the_guest_runs(self) -> None:
        self.assertIs(True, self._is_in_use(power_state.RUNNING))

    def test_not_after_a_start_that_failed(self) -> None:
        self.assertIs(False, self._is_in_use(power_state.SHUTDOWN))
        self.assertIs(False, self._is_in_use(power_state.CRASHED))
        self.assertIs(False, self._is_in_use(None))
