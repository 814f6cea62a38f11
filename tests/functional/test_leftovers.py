# SPDX-License-Identifier: Apache-2.0
"""What is left after a test is seen, of each kind."""

from __future__ import annotations

import uuid

from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine
from tests.functional import base
from tests.functional.test_strangers import _DOMAIN

CARD = base.SECOND_SOCKET[0]


class LeavesNothingTest(base.GPUServersTestBase):
    def test_each_kind(self) -> None:
        self.start_host()
        self.assertEqual([], list(self.left_behind()))
        domain = self.connection().defineXML(_DOMAIN.format(uuid=uuid.uuid4()))
        self.period()
        (group,) = self.groups().values()
        nobody, url = str(uuid.uuid4()), f"/resource_providers/{group}/inventories/PGPU"
        payload = {"allocations": {group: {"resources": {"PGPU": 1}}}}
        whose = {"project_id": "p", "user_id": "u", "consumer_generation": None}
        self.placement.put(f"/allocations/{nobody}", {**payload, **whose}, version="1.28")
        folder, address = self.state() / "gpu-quarantine", PciAddress.parse(CARD)
        quarantine.put(folder, quarantine.Entry(address, None, "it is old", "replace it", "today"))
        self.assertEqual(1, self.placement.get(url).body["reserved"])
        left = [kind for kind, _ in self.left_behind()]
        self.assertEqual(["allocation", "domain", "hold", "quarantine", "reserved"], sorted(left))
        self.assertRaises(AssertionError, self._expect_nothing_left)
        domain.undefine()
        quarantine.release(folder, address)
        self.placement.delete(f"/allocations/{nobody}")
