# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import fixtures
from oslotest import base

from nova_gpu.virt.verify import contradictions, gather, startup_check
from nova_gpu.virt.verify.sources import Difference, HostState, Kind

SILENT = HostState(None, {}, None, None, frozenset(), None, {}, unread=("libvirt: it is away",))
ONE, TWO = (Difference(Kind.NO_DOMAIN, each, f"{each} differs", "mend it") for each in "12")


class ReconciliationTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.gather, self.compare = (
            self.useFixture(fixtures.MockPatchObject(owner, name, return_value=SILENT)).mock
            for owner, name in ((gather, "gather"), (contradictions, "compare"))
        )
        looked: Any = type("Discovery", (), {"unavailable": None})()
        host: Any = object()
        self.reconciliation = startup_check.Reconciliation(looked, host, lambda: None)
        self.reconciliation.is_due = True

    def look(self, *found: Difference) -> None:
        self.compare.return_value = found
        self.reconciliation.look()

    def test_what_was_so_both_times(self) -> None:
        """In the first alone an instance may be between one source and the next."""
        self.look(ONE)
        self.assertNotIn("differs", self.log.output)
        self.look(ONE, TWO)
        self.assertIn("1 differs (no-domain): mend it", self.log.output)
        self.assertNotIn("2 differs", self.log.output)
        self.assertIn("with a source that cannot be read: libvirt: it is away", self.log.output)
        for _ in range(3):
            self.look(TWO)
        self.assertEqual((2, False), (self.gather.call_count, "2 differs" in self.log.output))

    def test_it_ends_no_period(self) -> None:
        self.reconciliation.is_due = False
        self.look(ONE)
        self.gather.assert_not_called()  # before Placement was told
        self.reconciliation.is_due = True
        self.compare.side_effect = ZeroDivisionError
        for _ in range(2):
            self.look()
        self.assertIn("Cannot compare the GPUs in Nova, libvirt and Placement", self.log.output)
        self.gather.assert_called_once()  # nor is it tried again in every one
