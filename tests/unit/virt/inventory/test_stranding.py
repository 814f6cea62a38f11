# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
from nova import objects
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.virt.inventory import stranding

ROOT = "d4c3b2a1-1111-4222-8333-444455556666"


class Placement:
    """What is asked of Nova's report client. Of 16 CPUs the host keeps four."""

    def get_provider_by_name(self, context: object, name: str) -> dict[str, str]:
        return {"uuid": {"node1": ROOT}[name]}

    def get(self, url: str, **kwargs: Any) -> Any:
        inventories = {
            "VCPU": {"total": 16, "reserved": 4, "allocation_ratio": 2.0},
            "PCPU": {"total": 2, "reserved": 0, "allocation_ratio": 1.0},
            "MEMORY_MB": {"total": 4096, "reserved": 96, "allocation_ratio": 1.0},
        }
        answers = {
            f"/resource_providers/{ROOT}/inventories": {"inventories": inventories},
            f"/resource_providers/{ROOT}/usages": {"usages": {"VCPU": 8, "MEMORY_MB": 1000}},
        }
        return SimpleNamespace(status_code=200, json=lambda: answers[url])


class StrandingTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(group="gpu", reserved_vcpus_per_free_gpu=4)
        self.free = 2
        self.left = mock.Mock(return_value=(7, 1024))

    def refuse(self, vm_state: str = "building", **specs: str) -> None:
        instance = objects.Instance(uuid=ROOT, vm_state=vm_state)
        stranding.refuse(instance, request.of(specs), lambda: self.free, self.left)

    def test_left(self) -> None:
        """As Placement counts, for dedicated CPUs and shared ones together"""
        self.assertEqual((16 * 2 - 4 * 2 - 8 + 2, 3000), stranding.left(Placement(), "node1"))

    def test_who_is_meant(self) -> None:
        with self.assertRaisesRegex(exception.BetterElsewhere, "7 vCPUs would be left, and 2 free"):
            self.refuse()
        self.refuse(vm_state="active")  # nobody would schedule it a second time
        self.refuse(gpus="1")
        self.free = 0
        self.refuse()
        self.free = 2
        self.config(group="gpu", reserved_vcpus_per_free_gpu=0)
        self.refuse()
        self.config(group="gpu", reserved_vcpus_per_free_gpu=4)
        self.left.return_value = (8, 1024)
        self.refuse()

    def test_placement_that_is_away_keeps_nobody(self) -> None:
        self.left.side_effect = OSError("Placement is away")
        self.refuse()
        self.assertIn(
            "Starting this instance unchecked: it may leave too few vCPUs or too little memory for "
            "this host's free GPUs: Placement is away",
            self.log.output,
        )
