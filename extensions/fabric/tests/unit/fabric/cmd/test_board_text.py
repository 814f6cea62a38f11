# SPDX-License-Identifier: Apache-2.0
"""What operators are shown of the NVSwitches of a KVM host's board."""

from __future__ import annotations

import json
from collections.abc import Mapping

from nova_gpu.cmd import host_check, topology
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu_fabric.cmd import board_text
from tests.fixtures import checkout, hosts, nvfm, partitions
from tests.fixtures import nvml as machines
from tests.fixtures.bases import commands as base

# Module 1, the fifth by PCI address, and module 5, the first
FIRST, FIFTH = "0000:86:00.0", "0000:0f:00.0"

GUIDE = checkout.ROOT / "doc/source/admin/host-check/partitions.txt"
FIRST_HALFS = "67c6091b-92d6-4ef4-b8b3-194ffd7b12dc"
SECOND_HALFS = "9f0b3c52-7f3e-4a53-8d1b-2c6f0a1e5d47"


class FabricTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config.config(state_path=str(self.root))
        self.config.config(group="libvirt", connection_uri="test:///default")
        self.option("nvml", True)
        self.host = hosts.Host(self.root)
        (self.host.roots.sysfs / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
        partitions.build(self.host)
        self.library = self.useFixture(machines.Library(*partitions.nvml_cards()))
        self.manager = self.useFixture(nvfm.FabricManager(partitions.H100))

    def check(self, status: int) -> str:
        host_discovery = discovery.Discovery()
        return self.printed(
            status, lambda: host_check.main(host_discovery, self.root, as_json=False)
        )

    def topology(self, *, as_json: bool = False) -> str:
        return self.printed(0, lambda: topology.main(discovery.Discovery(), as_json=as_json))

    def table(self, held: Mapping[PciAddress, tuple[str, ...]]) -> list[str]:
        host_discovery = discovery.Discovery()
        gpus = host_discovery.find()
        return list(board_text.table(host_discovery.deliveries.sets, gpus, held))

    def test_the_guide(self) -> None:
        """Two instances with a half each, as tests.functional.test_fabric has them"""
        self.manager.set_active([1, 2])
        held = {
            PciAddress.parse(card): (FIRST_HALFS if module < 5 else SECOND_HALFS,)
            for card, module in partitions.MODULES.items()
        }
        _, *lines = self.table(held)
        self.assertEqual(GUIDE.read_text(), "".join(f"{line}\n" for line in lines))

    def test_json(self) -> None:
        cards = {card["address"]: card for card in json.loads(self.topology(as_json=True))}
        self.assertEqual(1, cards[FIRST]["module"])
        self.assertEqual(5, cards[FIFTH]["module"])
        ids = [partition["id"] for partition in cards[FIFTH]["partitions"]]
        self.assertEqual([0, 2, 5, 11], ids)

    def test_with_guests_they_are_remembered(self) -> None:
        discovery.Discovery(Ledger()).find()
        for address in partitions.MODULES:
            self.host.bind(address, "vfio-pci")
        self.library.say()
        self.assertIn("it is module 1 of its board", self.check(0))

    def test_not_remembered(self) -> None:
        self.host.bind(FIRST, "vfio-pci")
        shown = self.check(1)
        self.assertIn(f"the module numbers of the cards {FIRST} are unknown;", shown)
        self.assertIn("  1  modules 1, 2, 3, 4\n", self.topology())

    def test_fabric_manager_is_down(self) -> None:
        self.manager.says("connect -9")
        fault = "Fabric Manager at 127.0.0.1:6666: it does not answer"
        self.assertIn(f"  - {fault}", self.check(1))
        self.assertIn(fault, self.topology())
        shown = json.loads(self.topology(as_json=True))
        self.assertEqual({None}, {card["partitions"] for card in shown})
