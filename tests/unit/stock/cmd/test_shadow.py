# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest

from nova_gpu.stock.cmd import shadow as command
from tests.fixtures.shadows import EMPTY, FOUND, WORDS


class TextTest(unittest.TestCase):
    def test_all_that_was_found(self) -> None:
        text = command.text(FOUND)
        for part in (
            "nova-gpu would offer:",
            "node1_gpu_10de_25b6_pci",
            "0000:3b:00.0: it is bound; it is reset\n    node1_0000:3B:00.0 is stock Nova's",
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

    def test_nothing(self) -> None:
        text = command.text(EMPTY)
        self.assertIn("nova-gpu would offer no GPU of this host", text)
        self.assertIn("No instance of this host has a GPU by stock Nova", text)


class PlainTest(unittest.TestCase):
    def test_all_that_was_found(self) -> None:
        plain = json.loads(json.dumps(command.as_plain(FOUND)))
        (group,) = plain["groups"]
        self.assertEqual(
            ("PGPU", 1, ["0000:3b:00.0"]), (*map(group.get, ("resource_class", "total", "cards")),)
        )
        self.assertEqual([True, False, True], [card["offered"] for card in plain["cards"]])
        self.assertEqual(["mine"], plain["cards"][0]["instances"])
        (instance,) = plain["instances"]
        self.assertEqual(
            ("mine", "a2.small", ["alias"]), (*map(instance.get, ("uuid", "flavor", "by")),)
        )
        self.assertFalse(instance["can_be_taken_over"])
        self.assertEqual(["0000:3b:00.0"], instance["devices"])
        self.assertEqual(WORDS, instance["set"])
        self.assertEqual(
            [{"reason": "it has the task deleting", "remedy": "wait"}], instance["obstacles"]
        )
        self.assertEqual("PIX", instance["choice"]["longest_path_then"])
        self.assertEqual({"strange": ["0000:5e:00.0"]}, plain["other_domains"])
        self.assertEqual(1, len(plain["not_read"]))
        self.assertEqual(["a2", "any"], [alias["name"] for alias in plain["aliases"]])
