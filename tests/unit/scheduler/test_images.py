# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova import objects

from nova_gpu.scheduler import images
from tests.fixtures.cloud_gpus import request_spec
from tests.unit.scheduler.test_request_filter import RequestFilterTest as _RequestFilterTest


class MachineTypeTest(unittest.TestCase):
    def test_what_is_not_said_is_not_unfit(self) -> None:
        for spec in (
            objects.RequestSpec(),
            objects.RequestSpec(image=None),
            objects.RequestSpec(image=objects.ImageMeta()),
            request_spec({}),
            request_spec({}, machine_type="q35"),
        ):
            self.assertIsNone(images.unfit_machine_type(spec))
        self.assertEqual("pc", images.unfit_machine_type(request_spec({}, machine_type="pc")))


class NobodyCouldTest(_RequestFilterTest):
    """With a reason, which no filter can give; and before anything is done to an instance."""

    def setUp(self) -> None:
        super().setUp()
        host = self.placement.add_host("host1")
        self.qemu = self.placement.add_group(host, 8, "ada", hypervisor="QEMU")

    def test_all_hosts_are_kvm(self) -> None:
        for flavor in ({"gpus": "1"}, {"gpus": "1", "hypervisor": "KVM"}, {"resources:PGPU": "1"}):
            with self.subTest(flavor=flavor):
                fault = self.refusal(flavor, machine_type="pc-i440fx-9.2")
                self.assertIn("machine type is pc-i440fx-9.2", fault)
                self.assertIn("hw_machine_type=q35", fault)
        for fitting in (None, "q35"):
            self.assertEqual({self.qemu}, self.taken(self.run_filter(flavor, machine_type=fitting)))

    def test_containers_have_no_use_for_it(self) -> None:
        host = self.placement.add_host("host2")
        lxc = self.placement.add_group(host, 8, "fermi")
        for flavor in ({"gpus": "1"}, {"gpus": "1", "hypervisor": "<or> LXC <or> KVM"}):
            spec = self.run_filter(flavor, machine_type="pc")
            self.assertEqual({self.qemu, lxc}, self.taken(spec))
        spec = self.run_filter({"gpus": "1", "hypervisor": "LXC"}, machine_type="pc")
        self.assertEqual({lxc}, self.taken(spec))
        fault = self.refusal({"gpus": "1", "hypervisor": "s!= LXC"}, machine_type="pc")
        self.assertIn("machine type is pc", fault)


class NoGPUsTest(_RequestFilterTest):
    def test_that_is_the_reason_whatever_the_image(self) -> None:
        self.placement.add_host("host1")
        self.assertIn("no host offers GPUs", self.refusal({"gpus": "1"}, machine_type="pc"))
