# SPDX-License-Identifier: Apache-2.0
"""Guests with half of a board with NVSwitches each.

QEMU's devices say in sysfs that they are modules of an HGX H100; NVML and Fabric Manager are the
stand-ins under the real bindings (``tests/fixtures/nvml.c``, ``nvfm.c``), whose files are on this
machine. Guests see that the cards are QEMU's.
"""

from __future__ import annotations

import pathlib
import re
import shutil
from typing import Any

from lab.vm import cards, modules
from tests.cloud import wire
from tests.fixtures import checkout, nvfm, nvml, partitions
from tests.vfio import base, place

SEEN = "1b36:0011 088000"
# A module of an HGX H100, one of its NVSwitches, and what QEMU's devices in their place are
_H100 = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330"}
_NVSWITCH = {"class": "0x068000", "vendor": "0x10de", "device": "0x22a3"}
_OWN = "1b36 0011"
# In the order of their addresses, as on the board whose modules are published
MODULES = dict(
    zip(
        cards.BOARD,
        (partitions.MODULES[address] for address in sorted(partitions.MODULES)),
        strict=True,
    )
)
FIRST_HALF = [address for address in cards.BOARD if MODULES[address] < 5]
SECOND_HALF = [address for address in cards.BOARD if MODULES[address] > 4]
_DOCUMENTED = checkout.ROOT / "doc/source/admin/host-check/partitions.txt"


class BoardTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.pretend(_H100, *cards.BOARD)
        self.pretend(_NVSWITCH, cards.NETWORK)
        self.addCleanup(self.cloud.flags, product_ids=[], group="gpu")
        out = str(self.cloud.vms[wire.HOST].out)
        library = self.enterContext(nvml.Library(*partitions.nvml_cards(MODULES), below=out))
        self.manager = self.enterContext(nvfm.FabricManager(partitions.H100, below=out))
        self.tell({**library.environment, **self.manager.environment}, out)
        driver = modules.FUNCTIONS.stem
        self.addCleanup(self.host.unload, driver)
        self.host.load(driver)
        self.host.drive(_OWN)
        self.addCleanup(self.cloud._delete_everything)
        self.cloud.flags(product_ids=["10de:2330"], group="gpu")
        self.cloud.restart_compute()
        self.offer("2330", len(MODULES))

    def tell(self, environment: dict[str, str], out: str) -> None:
        """The VM of the libraries, which lie where it can read them."""
        libraries = pathlib.Path(out, "libraries")
        libraries.mkdir()
        self.addCleanup(shutil.rmtree, libraries)
        for folder in environment["LD_LIBRARY_PATH"].split(":"):
            for library in pathlib.Path(folder).glob("*.so.1"):
                shutil.copy2(library, libraries)
        variables = {**environment, "LD_LIBRARY_PATH": str(libraries)}
        inside = {
            name: text.replace(out, str(place.LOG.parent)) for name, text in variables.items()
        }
        self.addCleanup(self.host.tell_environment, dict.fromkeys(inside))
        self.host.tell_environment(inside)

    def test_a_half_each_and_a_third_is_refused(self) -> None:
        four = self.cloud.flavor(**{"gpus": "= 4", "gpu:guest_topology": "flat"})
        servers = [self.begin(four) for _ in range(2)]
        for server in servers:
            self.cloud.wait_until(server, "ACTIVE")
        self.assertEqual({1, 2}, self.manager.active)
        first, second = sorted(servers, key=lambda server: self.hostdevs(server) != FIRST_HALF)
        self.assertEqual([FIRST_HALF, SECOND_HALF], [self.hostdevs(first), self.hostdevs(second)])
        self.assertIn("4 GPUs asked for, none free", self.cloud.refusal(four))
        self.assertDocumented(first, second)
        for server in servers:
            self.seen_in(server)
            self.assertEqual(4, self.cloud.console(server).count(SEEN))

        self.cloud.delete(first)
        self.assertEqual({2}, self.manager.active)
        self.assertEqual(["nvidia"] * 4, self.host.drivers(*FIRST_HALF))
        self.cloud.delete(second)
        self.assertEqual(set(), self.manager.active)

    def begin(self, flavor: str) -> dict[str, Any]:
        """An instance that is being started"""
        body = self.cloud._build_server(flavor_id=flavor, networks="none")
        server: dict[str, Any] = self.api.post_server({"server": body})
        return server

    def assertDocumented(self, *halves: dict[str, Any]) -> None:
        """What doc/ shows is what the command prints, but for the instances."""
        printed = self.host.shown_topology()
        shown = _DOCUMENTED.read_text()
        documented = re.findall(r"instance (\S+)$", shown, re.MULTILINE)
        for uuid, server in zip(documented, halves, strict=True):
            shown = shown.replace(uuid, server["id"])
        self.assertIn(shown, printed)
