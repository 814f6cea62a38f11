# SPDX-License-Identifier: Apache-2.0
"""What ``nova-gpu list`` and ``nova-gpu host check`` say of devices that work for no guest."""

from __future__ import annotations

import json
from typing import Any

from tests.fixtures import cleaned, hosts, vgpu
from tests.fixtures import nvml as machines
from tests.fixtures.bases import commands as base

SICK, WELL = "0000:81:00.0", "0000:82:00.0"


class PassthroughTest(base.CommandTestCase):
    """Cards that vfio-pci has"""

    def setUp(self) -> None:
        super().setUp()
        self.configure("kvm")
        self.host = hosts.Host(self.root)
        for address in (SICK, WELL):
            self.host.add_gpu(address, "10de", "1e04", driver="vfio-pci")
        cleaned.prove(self.host, self.root)

    def assertOnlyWellIsOffered(self, reason: str) -> None:
        listed = {
            card["address"]: card for card in json.loads(self.nova_gpu("list", "--json").stdout)
        }
        self.assertEqual({SICK: False, WELL: True}, {k: v["offered"] for k, v in listed.items()})
        self.assertIn(reason, listed[SICK]["reason"])
        checked = self.nova_gpu("host", "check")
        self.assertEqual(1, checked.returncode)
        sick, _, well = checked.stdout.partition(f"{WELL} (")
        self.assertIn("cannot be given to a guest\n", sick)
        self.assertIn(reason, sick)
        self.assertIn("can be given to a guest\n", well)

    def test_memory_that_the_firmware_keeps_for_one(self) -> None:
        self.host.reserve(WELL, "direct-relaxable")
        self.host.reserve(SICK, "direct")
        self.assertOnlyWellIsOffered("the firmware reserves 0x00000000dd800000")

    def test_a_card_that_an_option_has_divided(self) -> None:
        """What enables its functions has failed."""
        self.configure("kvm", f"virtual_functions = {SICK}=4")
        self.assertOnlyWellIsOffered("[gpu]virtual_functions divides it")

    def test_linked_cards_of_which_one_is_divided(self) -> None:
        self.host.bind(SICK, "nvidia")
        vgpu.add_types(self.host, SICK, vgpu.TESLA_P4)
        self.configure("kvm", f"link_groups = {SICK} {WELL}")
        listed = {
            card["address"]: card for card in json.loads(self.nova_gpu("list", "--json").stdout)
        }
        self.assertFalse(listed[WELL]["offered"])
        self.assertIn(f"direct links join it with {SICK}", listed[WELL]["reason"])


class DriverTest(base.CommandTestCase):
    """Cards that NVIDIA's driver has, for containers, by the stand-in of its library"""

    def setUp(self) -> None:
        super().setUp()
        cleaned.prove(hosts.build("h200-8", self.root), self.root)
        self.configure("lxc", "nvml_timeout = 120\nnvml = true")
        self.cards = machines.h200()
        self.library = self.useFixture(machines.Library())

    def assertNotOffered(self, index: int, reason: str) -> None:
        sick, others = self.read(self.cards[index].address)
        self.assertFalse(sick["offered"])
        self.assertIn(reason, sick["reason"])
        self.assertEqual({True}, {card["offered"] for card in others})
        # What is known of the others is not lost with it.
        self.assertEqual({143771}, {card["memory_mib"] for card in others})

    def read(self, address: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return that card and the others, of a process that finds the stand-in."""
        words = ("--config-file", self.conf, "list", "--json")
        done = base.fresh(base.MAIN.format("gpu"), *words)
        self.assertEqual(0, done.returncode, done.stderr)
        listed = {card["address"]: card for card in json.loads(done.stdout)}
        return listed.pop(address), [*listed.values()]

    def test_one_that_its_driver_could_not_initialise(self) -> None:
        self.library.say(*self.cards[1:])
        self.assertNotOffered(0, "NVML cannot open it (Not Found)")
