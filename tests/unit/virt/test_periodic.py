# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.virt.periodic import contained


class ContainedTest(base.BaseTestCase):
    def test_a_failure_is_logged_whole_and_goes_no_further(self) -> None:
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.periodic"))
        with contained("This host's GPUs were not read"):
            raise ZeroDivisionError("by a bug")
        self.assertIn("This host's GPUs were not read. This is a bug, please report it", log.output)
        self.assertIn("ZeroDivisionError: by a bug", log.output)

    def test_what_ends_the_service_is_not_kept(self) -> None:
        with self.assertRaises(SystemExit), contained("Nothing"):
            raise SystemExit(1)
