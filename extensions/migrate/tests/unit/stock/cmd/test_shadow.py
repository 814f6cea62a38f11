# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu_migrate.cmd import shadow as command
from tests.fixtures.shadows import FOUND


class TextTest(unittest.TestCase):
    def test_all_that_was_found(self) -> None:
        text = command.text(FOUND)
        for part in (
            "nova-gpu would offer:",
            "node1_gpu_10de_25b6_pci",
            "0000:3b:00.0: it is bound; it is reset\n",
            "node1_0000:3B:00.0 is stock Nova's provider of 0000:3b:00.0\n",
            "0000:5e:00.0: would not be offered: it is shared; use a slot",
            "0000:5e:00.0: would be offered in parts",
            "pci_passthrough:alias=a2:N says to nova-gpu: gpus='= N', gpu:model='s== A2'",
            "The alias any gives cards of several products",
            "without pci_passthrough:alias",
            "mine: it has the task deleting; wait",
            "mine: nova-gpu would have chosen 0000:5e:00.0 (longest path PIX instead of SYS)",
            "strange is a domain with 0000:5e:00.0",
            "Not read: libvirt: away",
        ):
            self.assertIn(part, text)
