# SPDX-License-Identifier: Apache-2.0
"""What nova-compute counts for ``nova-gpu exporter``."""

from __future__ import annotations

from nova_gpu.virt import counters
from tests.fixtures import ailments
from tests.functional import alone, base


class CountersTest(alone.Alone, base.GPUServersTestBase):
    def test_claims_failed_starts_and_cleanings(self) -> None:
        self.start_host()
        server = self.boot(self.gpu_flavor(2))
        self.boot(self.flavor())
        found = counters.read(self.state())
        # Each was cleaned when the service found it.
        self.assertEqual((2, {}, {"clean": 8}), (found.claims, found.failures, found.cleanings))
        ailments.silence(self.hosts["host1"], base.FIRST_SOCKET[0])
        self.period()
        self._stop_server(server)
        self.refused({"os-start": None}, server)
        self.assertEqual({"DeviceUnavailable": 1}, counters.read(self.state()).failures)
        ailments.answer_again(self.hosts["host1"], base.FIRST_SOCKET[0])
        self.period()
        self._delete_server(server)
        found = counters.read(self.state())
        self.assertEqual({"clean": 10}, found.cleanings)
        self.assertLess(0, found.cleaning_seconds["clean"])
