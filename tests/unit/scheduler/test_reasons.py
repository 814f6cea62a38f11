# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova import exception as nova_exception

from nova_gpu.core.flavor import request, vgpu_request
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.placement.inventory import Offer
from nova_gpu.scheduler import reasons


def asked_for(**words: str) -> GPURequest:
    asked = request.parse(words)
    assert asked is not None
    return asked


class ShortageTest(unittest.TestCase):
    def test_table(self) -> None:
        for count, offers, expected in (
            ("2", [], "no host has GPUs: each exists, but not in one GPU"),
            ("2", [Offer(8, 0, 6)], None),
            ("2", [Offer(8, 0, 8), Offer(2, 0, 0)], None),
            ("2", [Offer(8, 0, 7)], "2 GPUs asked for, 1 of 8 free, at most 1 in one host (7"),
            ("2", [Offer(8, 0, 8)], "2 GPUs asked for, 0 of 8 free (8 in use)"),
            ("2", [Offer(8, 0, 7), Offer(8, 0, 7)], "2 of 16 free, at most 1 in one host (14 in"),
            ("2", [Offer(8, 8, 0)], "0 of 8 free (0 in use, 8 out of service)"),
            # in use and ill at once
            ("2", [Offer(8, 8, 8)], "0 of 8 free (8 in use)"),
            ("2", [Offer(8, 2, 7)], "0 of 8 free (7 in use, 1 out of service)"),
            ("9", [Offer(8, 0, 0), Offer(4, 0, 0)], "no host has 9 GPUs: the most in one host"),
        ):
            asked = asked_for(gpus=count)
            with self.subTest(count=count, offers=offers):
                reason = reasons.shortage(asked, asked.groups[0], offers)
                if expected is None:
                    self.assertIsNone(reason)
                else:
                    self.assertIn(expected, reason or "no reason")

    def test_a_host_that_was_asked_for(self) -> None:
        asked = asked_for(gpus="2")
        for offers, expected in (
            ([], "the requested host has no GPUs"),
            ([Offer(1, 0, 0)], "the requested host has not 2 GPUs: the most in one host is 1"),
            ([Offer(2, 0, 1)], "2 GPUs asked for, 1 of 2 free"),
        ):
            with self.subTest(offers=offers):
                reason = reasons.shortage(asked, asked.groups[0], offers, bound=True)
                self.assertIn(expected, reason or "no reason")

    def test_of_vgpus(self) -> None:
        asked = vgpu_request.parse({"vgpus": "1", "gpu:memory_mib": ">= 2048"})
        assert asked is not None
        self.assertEqual(
            "no host has vGPUs (gpu:memory_mib >= 2048): each exists, but not in one vGPU",
            reasons.shortage(asked, asked.groups[0], []),
        )
        known = {
            "CUSTOM_GPU_VGPU_TYPE_A",
            "CUSTOM_GPU_MEMORY_MIB_1024",
            "CUSTOM_GPU_MEMORY_MIB_512",
        }
        self.assertEqual(
            "no host has vGPUs with gpu:memory_mib >= 2048; there are: 512, 1024",
            reasons.unknown_name(asked, known),
        )

    def test_what_was_wanted_is_said(self) -> None:
        asked = request.parse(
            {
                "gpus": "2",
                "gpu_arch": "s!= fermi",
                "hypervisor": "KVM",
                "trait:CUSTOM_GPU_MODEL_A": "required",
            }
        )
        assert asked is not None
        self.assertIn(
            "GPUs (architecture s!= fermi, hypervisor kvm (qemu), CUSTOM_GPU_MODEL_A)",
            reasons.shortage(asked, asked.groups[0], [Offer(8, 0, 8)]) or "",
        )


class LengthTest(unittest.TestCase):
    def test_every_reason_fits_into_a_fault(self) -> None:
        asked = asked_for(
            gpus="1000", gpu_arch="<or> blackwell <or> xe-hpc <or> maxwell", hypervisor="s== LXC"
        )
        group = asked.groups[0]
        many = {f"CUSTOM_GPU_ARCH_SOMETHING_{number}" for number in range(30)} | {"CUSTOM_GPU"}
        offers = [Offer(total=1024, reserved=100, used=900)] * 50
        resources = {"VCPU": 128, "MEMORY_MB": 1048576, "DISK_GB": 10000, "PGPU": 1000}
        for reason in (
            reasons.unknown_name(asked, many),
            reasons.shortage(asked, group, []),
            reasons.shortage(asked, group, offers),
            reasons.too_many_to_count(asked, group, 1000),
            reasons.elsewhere(asked, resources),
        ):
            with self.subTest(reason=reason):
                refused = nova_exception.RequestFilterFailed(reason=reason)
                fault = str(nova_exception.NoValidHost(reason=refused.message))
                self.assertIn(reason or "no reason", fault)
                self.assertLessEqual(len(fault), 255)
