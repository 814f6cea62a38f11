# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from nova import objects, test

from nova_gpu.scheduler import requested_gpus
from tests.fixtures.bases.request_filter import RequestFilterTestCase
from tests.fixtures.cloud_gpus import request_spec


class RequestedTest(test.NoDBTestCase):
    def test_traits_of_the_image(self) -> None:
        for trait, of_gpus in (("HW_GPU_API_VULKAN", True), ("HW_CPU_X86_AVX2", False)):
            spec = request_spec({})
            spec.image.properties.traits_required = [trait]
            with self.subTest(trait=trait):
                self.assertEqual(of_gpus, requested_gpus.from_spec(spec).image_names_gpus)

    def test_devices_of_novas_own_passthrough(self) -> None:
        spec = request_spec({})
        self.assertIsNone(requested_gpus.from_spec(spec).pci_devices)
        asked = [objects.InstancePCIRequest(count=count) for count in (1, 2)]
        for requests, count in ((None, None), ([], 0), (asked, 3)):
            spec.pci_requests = (
                None if requests is None else objects.InstancePCIRequests(requests=requests)
            )
            self.assertEqual(count, requested_gpus.from_spec(spec).pci_devices)

    def test_what_came_without(self) -> None:
        bare = objects.RequestSpec(flavor=objects.Flavor(flavorid="read without"))
        for spec in (bare, objects.RequestSpec(flavor=bare.flavor, image=objects.ImageMeta())):
            asked = requested_gpus.from_spec(spec)
            self.assertEqual((), asked.flavor.requests)
            self.assertEqual((None, False), (asked.unfit_machine_type, asked.image_names_gpus))


class NobodyCouldTest(RequestFilterTestCase):
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
