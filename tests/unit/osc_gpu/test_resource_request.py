# SPDX-License-Identifier: Apache-2.0
"""Beside what Nova's scheduler makes of the same flavor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from urllib import parse

import fixtures
import os_traits
from nova import exception, objects
from nova.scheduler import utils
from oslotest import base

from osc_gpu import resource_request
from osc_gpu.resource_request import Size

_SEV = ("amd-sev", "amd-sev-es")
_SIZE = Size(vcpus=4, ram=512, disk=10, ephemeral=2, swap=1025)
_PROPERTIES = {
    "resources:PGPU": ("2", " 2 ", "0", "-1", "two", "1_0"),
    "resources:VCPU": ("0", "8"),
    "resources:NO_SUCH": ("1",),
    "resources:CUSTOM_BAR\n": ("3",),
    "resources_nova_gpu:PGPU": ("1",),
    "resources1:PCPU": ("2",),
    "resources:DISK_GB": ("0", "100"),
    "resources2:MEMORY_MB": ("64",),
    "trait:HW_CPU_X86_AVX2": ("required", "forbidden", "preferred"),
    "trait_nova_gpu:CUSTOM_GPU": ("required",),
    "trait3:CUSTOM_B": ("forbidden",),
    "group_policy": ("none", "isolate", "other"),
    "hw:cpu_policy": ("shared", "dedicated", "mixed"),
    "hw:cpu_dedicated_mask": ("0-2", "^0", "1,3", "0-3,^1-2"),
    "hw:cpu_realtime": ("yes", "no"),
    "hw:cpu_realtime_mask": ("^0-1", "2"),
    "hw:emulator_threads_policy": ("isolate", "share"),
    "hw:cpu_thread_policy": ("prefer", "isolate", "require"),
    "hw:pci_numa_affinity_policy": ("socket", "required"),
    "hw:maxphysaddr_mode": ("passthrough", "emulate"),
    "hw:tpm_version": ("1.2", "2.0"),
    "hw:tpm_model": ("tpm-tis", "tpm-crb"),
    "os:secure_boot": ("required", "optional"),
    "hw:pmem": ("6GB, 6GB,big", ""),
}


def _novas(size: Size, specs: Mapping[str, str]) -> tuple[str, Mapping[str, int]]:
    flavor = objects.Flavor(
        name="flavor",
        vcpus=size.vcpus,
        memory_mb=size.ram,
        root_gb=size.disk,
        ephemeral_gb=size.ephemeral,
        swap=size.swap,
        extra_specs=dict(specs),
    )
    # The firmware that Nova insists on beside encrypted memory
    properties = objects.ImageMetaProps(hw_firmware_type="uefi", hw_machine_type="q35")
    spec = objects.RequestSpec(
        flavor=flavor,
        image=objects.ImageMeta(properties=properties),
        is_bfv=False,
        requested_resources=[],
    )
    spec.root_forbidden.add(os_traits.COMPUTE_STATUS_DISABLED)
    request = utils.ResourceRequest.from_request_spec(spec)
    pairs = [pair for pair in parse.parse_qsl(request.to_querystring()) if pair[0] != "limit"]
    return parse.urlencode(pairs), dict(request.get_request_group(None).resources)


class MakeTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.FakeLogger("nova"))
        objects.register_all()

    def same(self, specs: Mapping[str, str]) -> bool:
        """Whether Nova has an answer, which is the same then"""
        try:
            expected = _novas(_SIZE, specs)
        except exception.NovaException:
            return False
        self.assertEqual(expected, resource_request.make(_SIZE, specs), specs)
        return True

    def test_as_nova(self) -> None:
        self.assertTrue(self.same({}))
        single = [(key, value) for key, values in _PROPERTIES.items() for value in values]
        pairs = itertools.combinations(single, 2)
        several = itertools.combinations([pair for pair in single if pair[0] != "group_policy"], 3)
        with_processors = (
            combination for combination in several if ("hw:cpu_policy", "mixed") in combination
        )
        tried = [dict(combination) for combination in (*pairs, *with_processors)]
        self.assertGreater(sum(map(self.same, tried)), 1500)
        for model in ({}, *({"hw:mem_encryption_model": name} for name in _SEV)):
            self.assertTrue(self.same({"hw:mem_encryption": "true"} | model))
