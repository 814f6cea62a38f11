# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import unittest
from unittest import mock

from nova import objects
from oslo_utils import uuidutils

from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.core.model import Product
from nova_gpu.core.vgpu.vgpu import Slot, VGPUType, device_uuid
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup, group_key
from nova_gpu.virt import host_gpus
from nova_gpu.virt.lifecycle import vgpu_starts

PROVIDER, OTHER = uuidutils.generate_uuid(), uuidutils.generate_uuid()
SLOT = Slot.parse("0000:3b:00.0/nvidia-63/0")


class TestNovasOwn(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.gpus = mock.create_autospec(host_gpus.HostGPUs, instance=True)
        self.gpus.vgpus = mock.MagicMock()
        self.gpus.vgpus.stock.provider_uuids = {"group": PROVIDER}
        self.gpus.vgpus.slots.return_value = []
        self.gpus.named_by.return_value = frozenset({SLOT})
        self.instance = objects.Instance(uuid=uuidutils.generate_uuid(), resources=None)

    def test_a_plain_instance_needs_nobody(self) -> None:
        self.gpus.ask_for_providers.side_effect = OSError("Placement is down")
        self.assertEqual([], vgpu_starts.held(self.gpus, self.instance))
        self.assertEqual({}, vgpu_starts.of_others(self.gpus, self.instance, {}))
        allocations = {OTHER: {"resources": {"VCPU": 1}}}
        for each in (None, {}, allocations):
            self.assertEqual(each, vgpu_starts.without_ours(self.gpus, each))

    def test_what_is_left_to_nova(self) -> None:
        both = {PROVIDER: {"resources": {"VGPU": 1}}, OTHER: {"resources": {"VGPU": 2}}}
        self.assertEqual({OTHER: both[OTHER]}, vgpu_starts.without_ours(self.gpus, both))
        ours, others = device_uuid(self.instance.uuid, SLOT), uuidutils.generate_uuid()
        assigned = {ours: self.instance.uuid, others: self.instance.uuid}
        self.assertEqual(
            {others: self.instance.uuid},
            vgpu_starts.of_others(self.gpus, self.instance, assigned),
        )
        self.assertEqual(assigned, vgpu_starts.of_others(self.gpus, None, assigned))


class TestCompare(unittest.TestCase):
    def test_what_may_be_known_no_more_keeps_nobody_from_what_he_has(self) -> None:
        product = Product("10de", "1bb3")
        group = VGPUGroup(group_key(product, "nvidia-63"), product, VGPUType("nvidia-63"), {})
        asked = request.of({"vgpus": "1", "gpu:memory_mib": "1"})
        vgpu_starts.compare(asked, [(group, SLOT)], given=False)
        with self.assertRaisesRegex(exception.RequestMismatch, "of nvidia-63 it is not known"):
            vgpu_starts.compare(asked, [(group, SLOT)], given=True)
        with self.assertRaisesRegex(exception.RequestMismatch, "holds 0"):
            vgpu_starts.compare(asked, [], given=False)
