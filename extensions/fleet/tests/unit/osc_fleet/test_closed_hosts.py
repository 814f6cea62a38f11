# SPDX-License-Identifier: Apache-2.0
"""Hosts that are drained or reserved, as the client lists them."""

from __future__ import annotations

import datetime

from oslo_utils import timeutils

from nova_gpu_fleet.core import closed_hosts, names
from tests.unit.osc_gpu import test_hosts


class ClosedTest(test_hosts.HostsTestCase):
    def test_drained(self) -> None:
        for name, status in (("off", "disabled"), ("on", "enabled")):
            host = self.add_host(name, status=status)
            self.placement.add_group(host, 8)
            self.placement.mark(host, names.DRAINED)
        self.assertEqual(
            {
                "off": (0, "drained; disabled: moved"),
                "on": (0, "drained"),
            },
            self.answers(gpus="= 2"),
        )

    def test_reserved(self) -> None:
        host = self.add_host("host1")
        self.placement.add_group(host, 8)
        for days in (1, 3, 2):
            end = timeutils.utcnow().replace(microsecond=0) + datetime.timedelta(days=days)
            self.placement.mark(host, closed_hosts.reserving(end))
            if days == 3:
                last = f"no preemptible instance until {end.isoformat()}Z"
        self.assertEqual({"host1": (4, "4 VCPU asked for, 0 free after 4")}, self.answers(gpus="1"))
        spot = {"gpus": "1", "gpu:preemptible": "1h", "gpu:on_preempt": "delete"}
        self.assertEqual({"host1": (0, last)}, self.answers(**spot))
