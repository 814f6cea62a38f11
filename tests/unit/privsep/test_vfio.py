# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

import nova_gpu.privsep.vfio
from nova_gpu.core import exception
from tests.fixtures import kernel
from tests.fixtures.verbs import VerbTestCase

CARD = "0000:81:00.0"


class TestVfio(VerbTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1e04")
        self.useFixture(kernel.Kernel(self.host, ("vfio-pci", "nvidia")))
        self.config(state_path=str(self.root / "state"))
        (self.root / "state").mkdir()

    def driver(self) -> str:
        return os.readlink(self.host.path(CARD) / "driver").rpartition("/")[2]

    def test_there_and_back(self) -> None:
        nova_gpu.privsep.vfio.give_to_guests(CARD)
        self.assertEqual("vfio-pci", self.driver())
        self.assertEqual([f"{CARD}.json"], os.listdir(nova_gpu.privsep.vfio.records()))
        nova_gpu.privsep.vfio.give_to_host(CARD)
        self.assertEqual("nvidia", self.driver())

    def test_an_address_is_an_address(self) -> None:
        for value in ("../0000:81:00.0", "0000:81:00.0/driver", ""):
            for verb in (nova_gpu.privsep.vfio.give_to_guests, nova_gpu.privsep.vfio.give_to_host):
                self.assertRaises(exception.InvalidPciAddress, verb, value)
