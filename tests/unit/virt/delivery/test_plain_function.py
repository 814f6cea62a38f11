# SPDX-License-Identifier: Apache-2.0
"""What is plain functions' own; the rest is in test_hostdev_parts."""

from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.virt.delivery import plain_function


class PlainFunctionsTest(base.BaseTestCase):
    def test_divided_as_the_option_says(self) -> None:
        enable = self.useFixture(fixtures.MockPatch("nova_gpu.privsep.vgpu.enable_functions")).mock
        plain_function.divide("0000:c3:00.0", 4)
        enable.assert_called_once_with("0000:c3:00.0", number=4)
