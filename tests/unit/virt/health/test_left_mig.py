# SPDX-License-Identifier: Apache-2.0
"""A card that comes back in MIG mode, as A100 and A30 remember it over a reset
(NVIDIA/gpu-admin-tools#2)."""

from __future__ import annotations

import dataclasses

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import health
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import discovery
from nova_gpu.virt.health import left_mig
from tests.fixtures import hosts
from tests.fixtures import nvml as machines


class LeftMIGTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        (self.left,) = machines.a100_mig()
        self.left = dataclasses.replace(self.left, mig=())
        self.host.add_gpu(self.left.address, "10de", "20b0", driver="nvidia")
        self.library = self.useFixture(machines.Library(self.left))
        self.put: list[tuple[str, str]] = []

    def judge(self) -> list[tuple[str, str]]:
        def put_away(card: GPU, verdict: health.Verdict, until_boot: str | None) -> None:
            self.put.append((str(card.address), str(verdict)))
            self.assertIsNone(until_boot)

        card = discovery.card_at(PciAddress.parse(self.left.address), self.host.roots)
        assert card is not None
        left_mig.judge(card, self.host.roots, put_away)
        return self.put

    def test_put_away(self) -> None:
        ((address, said),) = self.judge()
        self.assertEqual(self.left.address, address)
        self.assertIn("it is in MIG mode without instances, which a guest has left on", said)
        self.assertIn("nvidia-smi -mig 0", said)

    def test_no_other_card_is_opened_for_that(self) -> None:
        self.library.say(self.left, attach="!19")  # NVML_ERROR_IN_USE
        self.assertEqual(1, len(self.judge()))

    def test_one_that_is_not(self) -> None:
        self.library.say(dataclasses.replace(self.left, mig=None))
        self.assertEqual([], self.judge())

    def test_one_that_the_driver_does_not_have(self) -> None:
        self.host.bind(self.left.address, "vfio-pci")
        self.assertEqual([], self.judge())

    def test_without_nvml(self) -> None:
        self.config.config(group="gpu", nvml=False)
        self.assertEqual([], self.judge())
