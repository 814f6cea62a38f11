# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova import exception as nova_exception

from nova_gpu.core.flavor import request
from nova_gpu.core.placement.inventory import Inventory
from nova_gpu.core.scheduling import no_valid_host
from nova_gpu.core.scheduling.no_valid_host import Supply
from tests.fixtures.flavor_requests import asked as vgpus
from tests.fixtures.flavor_requests import whole


class ShortageTest(unittest.TestCase):
    def test_table(self) -> None:
        for count, offers, expected in (
            ("2", [Inventory(8, 0, 6)], None),
            ("2", [Inventory(8, 0, 8), Inventory(2, 0, 0)], None),
            ("2", [Inventory(8, 0, 7)], "2 GPUs asked for, 1 of 8 free, at most 1 in one host (7"),
            ("2", [Inventory(8, 0, 8)], "2 GPUs asked for, 0 of 8 free (8 in use)"),
            (
                "2",
                [Inventory(8, 0, 7), Inventory(8, 0, 7)],
                "2 of 16 free, at most 1 in one host (14 in",
            ),
            ("2", [Inventory(8, 8, 0)], "0 of 8 free (0 in use, 8 out of service)"),
            # in use and ill at once
            ("2", [Inventory(8, 8, 8)], "0 of 8 free (8 in use)"),
            ("2", [Inventory(8, 2, 7)], "0 of 8 free (7 in use, 1 out of service)"),
            (
                "9",
                [Inventory(8, 0, 0), Inventory(4, 0, 0)],
                "no host has 9 GPUs: the most in one host",
            ),
            # with room for fewer in one guest
            (
                "3",
                [Inventory(8, 0, 0, max_unit=2)],
                "no guest of any host has room for 3 GPUs: the most",
            ),
            ("2", [Inventory(8, 0, 7, max_unit=2)], "2 GPUs asked for, 1 of 8 free"),
        ):
            gpu_request = whole({"gpus": count})
            with self.subTest(count=count, offers=offers):
                reason = no_valid_host.shortage(gpu_request, gpu_request.groups[0], offers)
                self.assertEqual(expected is None, reason is None)
                self.assertIn(expected or "", reason.log_text if reason else "")

    def test_a_host_that_was_asked_for(self) -> None:
        gpu_request = whole({"gpus": "2"})
        for offers, expected in (
            (
                [Inventory(1, 0, 0)],
                "the requested host does not have 2 GPUs: the most in one host is 1",
            ),
            ([Inventory(2, 0, 1)], "2 GPUs asked for, 1 of 2 free"),
        ):
            with self.subTest(offers=offers):
                reason = no_valid_host.shortage(
                    gpu_request, gpu_request.groups[0], offers, bound=True
                )
                assert reason
                self.assertIn(expected, reason.log_text)
        reason = no_valid_host.nowhere(gpu_request, gpu_request.groups[0], [], [], bound=True)
        self.assertEqual("the requested host has no GPUs", reason.log_text)

    def test_what_the_user_is_told_of_it(self) -> None:
        gpu_request, one = whole({"gpus": "2", "gpu_arch": "fermi"}), whole({"gpus": "1"})
        fermi = "2 GPUs (architecture fermi) asked for"
        for request_, offers, expected in (
            (gpu_request, [Inventory(8, 0, 7)] * 9, f"{fermi}, at most 1 free in one host"),
            (gpu_request, [Inventory(8, 0, 8)], f"{fermi}, none free"),
            (one, [Inventory(8, 0, 8)], "1 GPU asked for, none free"),
        ):
            reason = no_valid_host.shortage(request_, request_.groups[0], offers)
            assert reason
            self.assertEqual(expected, reason.user_text)
            self.assertIn("in use", reason.log_text)
        for reason in (
            no_valid_host.too_few(one, 4, 2),
            no_valid_host.too_many_to_count(one, one.groups[0], 80),
        ):
            assert reason
            self.assertNotRegex(reason.user_text, "[28]")

    def test_traits_that_no_gpu_has(self) -> None:
        fermi, vulkan, x = "CUSTOM_GPU_ARCH_FERMI", "HW_GPU_API_VULKAN", "CUSTOM_GPU_ARCH_X"
        for traits, unmet, expected in (
            ({x: "required"}, [x], f"GPUs with {x}; there are: fermi"),
            ({vulkan: "required"}, [vulkan], f"no host has GPUs with {vulkan}"),
            ({fermi: "forbidden"}, [fermi], f"GPUs without {fermi}: all of them have it"),
            (
                {fermi: "required", vulkan: "required"},
                [],
                f"GPUs ({fermi}, {vulkan}): there are GPUs for each",
            ),
        ):
            with self.subTest(traits=traits):
                gpu_request = whole(
                    {"gpus": "2"} | {f"trait:{trait}": traits[trait] for trait in traits}
                )
                reason = no_valid_host.nowhere(
                    gpu_request, gpu_request.groups[0], unmet, {fermi, "CUSTOM_GPU"}
                )
                self.assertIn(expected, reason.log_text)
        # Those that are given otherwise
        model, vgpu_request = "CUSTOM_GPU_MODEL_A16", vgpus(**{"vgpus": "1", "gpu:model": "A16"})
        reason = no_valid_host.nowhere(vgpu_request, vgpu_request.groups[0], [model], {model})
        self.assertEqual(
            "no host has vGPUs with gpu:model a16: those are given whole", reason.log_text
        )


class MissingTest(unittest.TestCase):
    def test_first_reason_of_several_requests(self) -> None:
        requests = request.of({"gpus": "2", "vgpus": "1"}).requests
        gpus = requests[0]
        known = {"CUSTOM_GPU"}
        short = Supply(gpus.groups[0], 1, [Inventory(8, 0, 8)])
        enough = Supply(gpus.groups[0], 1, [Inventory(8, 0, 0)])
        none = Supply(gpus.groups[0], 0, [])
        many = Supply(gpus.groups[0], 80, None)
        for supplies, expected in (
            ([short], "0 of 8 free"),
            ([many], "none of the 80 groups"),
            ([none], "and none for all of them at once"),
            ([enough, short], "0 of 8 free"),
            ([enough], "no host offers vGPUs"),
        ):
            with self.subTest(supplies=supplies):
                reason = no_valid_host.missing(requests, [supplies, iter(())], known)
                assert reason
                self.assertIn(expected, reason.log_text)
        self.assertIsNone(no_valid_host.missing([gpus], [[enough]], known))


class LengthTest(unittest.TestCase):
    def test_every_reason_fits_into_a_fault(self) -> None:
        architectures = "<or> blackwell <or> xe-hpc <or> maxwell"
        gpu_request = whole({"gpus": "1000", "gpu_arch": architectures, "hypervisor": "s== LXC"})
        group = gpu_request.groups[0]
        many = {f"CUSTOM_GPU_ARCH_SOMETHING_{number}" for number in range(30)} | {"CUSTOM_GPU"}
        offers = [Inventory(total=1024, reserved=100, used=900)] * 50
        resources = {"VCPU": 128, "MEMORY_MB": 1048576, "DISK_GB": 10000, "PGPU": 1000}
        for reason in (
            no_valid_host.unknown_name(gpu_request, many),
            no_valid_host.nowhere(gpu_request, group, [], many),
            no_valid_host.nowhere(gpu_request, group, ["CUSTOM_GPU_ARCH_SOMETHING"], many),
            no_valid_host.too_few(gpu_request, 1000, 999),
            no_valid_host.shortage(gpu_request, group, offers),
            no_valid_host.too_many_to_count(gpu_request, group, 1000),
            no_valid_host.elsewhere(gpu_request, resources, None),
            no_valid_host.elsewhere(
                gpu_request, resources, f"on no host with the trait {'CUSTOM_X' * 15}"
            ),
            no_valid_host.not_together([gpu_request]),
        ):
            assert reason
            for text in (reason.log_text, reason.user_text):
                with self.subTest(text):
                    refused = nova_exception.RequestFilterFailed(reason=text)
                    fault = str(nova_exception.NoValidHost(reason=refused.message))
                    self.assertIn(text, fault)
                    self.assertLessEqual(len(fault), 255)


class PrintableTest(unittest.TestCase):
    def test_what_an_images_property_has(self) -> None:
        """It reaches the log, the notification and the fault by the same reason."""
        gpu_request = whole({"gpus": "1"})
        traits = ["CUSTOM_GPU_HYPERVISOR_QEMU"]
        reason = no_valid_host.unfit_machine_type(
            gpu_request, "pc\x1b[2K\n2026 CRITICAL \u202e", traits
        )
        assert reason
        for text in (reason.log_text, reason.user_text):
            self.assertTrue(text.isprintable(), text)
            self.assertIn("pc\ufffd[2K 2026 CRITICAL", text)
