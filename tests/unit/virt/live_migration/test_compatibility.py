# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import discovery
from nova_gpu.virt.live_migration import compatibility
from tests.fixtures import hosts
from tests.fixtures import nvml as machines

WORDS = "nvidia-1155 of 10de:26b9, a virtual function with a type"


class MismatchTest(base.BaseTestCase):
    def test_alike(self) -> None:
        for has, gets in (
            (WORDS, WORDS),
            (f"{WORDS}; driver 550.54.16; ECC 1", f"{WORDS}; driver 550.54.16; ECC 1"),
            (WORDS, f"{WORDS}; driver 535.1; ECC 0"),  # of an older release
            (f"{WORDS}; driver 550.54.16", f"{WORDS}; ECC 0"),
        ):
            self.assertIsNone(compatibility.not_alike(has, gets), (has, gets))

    def test_others(self) -> None:
        other = WORDS.replace("1155", "1156")
        said = compatibility.not_alike(f"{WORDS}; ECC 1", f"{other}; ECC 1")
        self.assertEqual(f"the guest has {WORDS}, and would get {other}", said)
        for has, gets, words in (
            (None, "", "the guest has None"),
            ("; driver 1.2; ECC 1", "; driver 1.2; ECC 0", "has ECC on, and the one that it would"),
            (
                "; driver 550.54.16",
                "; driver 550.127.05",
                "is 550.54.16, and the one there is 550.127.05, which takes no",
            ),
        ):
            own = None if has is None else f"{WORDS}{has}"
            self.assertIn(words, str(compatibility.not_alike(own, f"{WORDS}{gets}")))


class FactsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        card, _ = machines.l40s()
        self.card = dataclasses.replace(card, more={"ecc_mode": "1 0"})  # off after the next boot
        self.library = self.useFixture(machines.Library(self.card))
        self.host.add_gpu(card.address, "10de", "26b9", driver="nvidia")
        self.address = PciAddress.parse(card.address)

    def facts(self) -> str:
        found = discovery.cards_at([self.address], self.host.roots)
        return compatibility.facts_of(found, self.host.roots).get(self.address, "")

    def test_of_the_driver_and_the_card(self) -> None:
        """As far as they are known, and nothing of others"""
        self.assertEqual("; driver 570.172.08; ECC 1", self.facts())
        version = self.host.roots.proc / "driver/nvidia/version"
        closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.16  Tue Feb 20 2024\n"
        version.write_text(closed)
        self.assertEqual("; driver 550.54.16; ECC 1", self.facts())
        self.library.say(dataclasses.replace(self.card, more={}))
        self.assertEqual("; driver 550.54.16", self.facts())
        self.config.config(group="gpu", nvml=False)
        version.unlink()
        self.assertEqual("", self.facts())
        version.write_text(closed)
        self.host.add_gpu("0000:af:00.0", "8086", "56c0")
        self.address = PciAddress.parse("0000:af:00.0")
        self.assertEqual("", self.facts())
