# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import unittest

from nova_gpu.virt.delivery import service

_TEXT = """
import sys
from nova_gpu.virt.delivery import ways
print("nova.virt.libvirt" in sys.modules, "oslo_privsep" in sys.modules)
from nova_gpu.virt.delivery import service
print(callable(service.guest_config.add_cards), "nova.virt.libvirt" in sys.modules)
"""


class ServiceTest(unittest.TestCase):
    def test_modules_are_imported_when_they_are_used(self) -> None:
        command = [sys.executable, "-W", "ignore", "-c", _TEXT]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual("False False\nTrue True\n", done.stdout, done.stderr)

    def test_all_that_are_declared_can_be_imported(self) -> None:
        for name in service.__all__:
            with self.subTest(name):
                self.assertEqual(name, getattr(service, name).__name__.rpartition(".")[2])

    def test_another_name(self) -> None:
        self.assertFalse(hasattr(service, "nothing"))
