# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest

from nova_gpu.core import exception, stats

GROUP = {
    "provider": "host1_gpu_10de_1091_lxc",
    "product": "10de:1091",
    "architecture": "fermi",
    "mode": "lxc",
    "total": 8,
}


class StatsTest(unittest.TestCase):
    def test_what_is_written_is_what_is_read(self) -> None:
        for groups in (
            (),
            (stats.GroupStats("p", "10de:1091", None, "lxc", 0),),
            (stats.GroupStats(**GROUP), stats.GroupStats("q", "1002:66a0", "gcn5", "pci", 4)),
        ):
            host = stats.HostStats("LXC", groups)
            with self.subTest(groups=groups):
                self.assertEqual(host, stats.loads(stats.dumps(host)))

    def test_the_form_on_the_wire(self) -> None:
        host = stats.HostStats("LXC", (stats.GroupStats(**GROUP),))
        self.assertEqual(
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP]}, json.loads(stats.dumps(host))
        )

    def test_what_cannot_be_read_is_refused(self) -> None:
        for fields in (
            None,
            [],
            {},
            {"v": 2, "hypervisor": "LXC", "groups": []},
            {"v": 1, "hypervisor": None, "groups": []},
            {"v": 1, "hypervisor": "LXC"},
            {"v": 1, "hypervisor": "LXC", "groups": None},
            {"v": 1, "hypervisor": "LXC", "groups": ["x"]},
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP | {"more": 1}]},
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP | {"total": "8"}]},
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP | {"total": -1}]},
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP | {"total": True}]},
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP | {"architecture": 4}]},
            {"v": 1, "hypervisor": "LXC", "groups": [GROUP | {"provider": None}]},
        ):
            with self.subTest(fields=fields), self.assertRaises(exception.InvalidStats):
                stats.loads(json.dumps(fields))
        for text in ("", "{", "nonsense"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidStats):
                stats.loads(text)
