# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.guest import machine_types


class MachineTypeTest(unittest.TestCase):
    def test_with_pci_express(self) -> None:
        for machine_type in ("q35", "pc-q35-7.2", "pc-q35-rhel9.4.0", "virt", "virt-8.0"):
            with self.subTest(machine_type=machine_type):
                machine_types.refuse_without_pci_express(machine_type)

    def test_without(self) -> None:
        for machine_type in (None, "pc", "pc-i440fx-7.2", "s390-ccw-virtio", "pseries"):
            with (
                self.subTest(machine_type=machine_type),
                self.assertRaises(exception.GuestUnfit) as caught,
            ):
                machine_types.refuse_without_pci_express(machine_type)
            self.assertIn(machine_type or "not set", str(caught.exception))
            self.assertIn("hw_machine_type=q35", str(caught.exception))
