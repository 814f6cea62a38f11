# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import flavor_mismatch
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.placement_policy import Arrangement, Near, TopologyPolicy
from nova_gpu.core.flavor_mismatch import HeldGPUs
from nova_gpu.core.model import Product
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup, group_key
from tests.fixtures import cards
from tests.fixtures.flavor_requests import whole

FERMI = "CUSTOM_GPU_ARCH_FERMI"
KEPLER = "CUSTOM_GPU_ARCH_KEPLER"


class MismatchTestCase(unittest.TestCase):
    def assertSaid(self, part: str | None, reason: str | None, case: object) -> None:
        self.assertEqual(part is None, reason is None, (case, reason))
        self.assertIn(part or "", reason or "", case)


class GPUMismatchTest(MismatchTestCase):
    def check(
        self,
        specs: dict[str, str],
        held: list[HeldGPUs],
        part: str | None,
        host: str | None = "LXC",
    ) -> None:
        with self.subTest(specs=specs, held=held):
            reason = flavor_mismatch.gpu_mismatch(request.of(specs).whole, held, host)
            self.assertSaid(part, reason, specs)

    def test_table(self) -> None:
        fermi = HeldGPUs(2, "fermi", lambda: frozenset({"CUSTOM_GPU", FERMI}))
        kepler = HeldGPUs(2, "kepler", lambda: frozenset({"CUSTOM_GPU", KEPLER}))
        nameless = HeldGPUs(2, None, lambda: frozenset({"CUSTOM_GPU", "CUSTOM_GPU_ARCH_UNKNOWN"}))
        two = {"gpus": "= 2"}
        for specs, held, part in (
            (two, [fermi], None),
            (two, [nameless], None),
            (two, [], "holds 0 GPUs, and its flavor asks for 2"),
            (two, [fermi, kepler], "holds 4 GPUs"),
            ({}, [], None),
            ({}, [fermi], "holds 2 GPUs, and its flavor asks for 0"),
            (two | {"gpu_arch": "fermi"}, [fermi], None),
            (two | {"gpu_arch": "fermi"}, [kepler], "architecture kepler"),
            (two | {"gpu_arch": "s!= kepler"}, [nameless], "architecture unknown"),
            ({"gpus": "4", "gpu_arch": "fermi"}, [fermi, kepler], "architecture kepler"),
            (two | {f"trait:{FERMI}": "required"}, [fermi], None),
            (two | {f"trait:{FERMI}": "required"}, [kepler], FERMI),
            (two | {f"trait:{KEPLER}": "forbidden"}, [kepler], f"!{KEPLER}"),
            (two | {"trait:CUSTOM_GPU_OF_AN_OPERATOR": "required"}, [fermi], None),
            (two | {"trait:HW_GPU_API_VULKAN": "required"}, [fermi], None),
            (two | {"trait:CUSTOM_GPU_TOTAL_8": "required"}, [fermi], None),
            (two | {"hypervisor": "s== LXC"}, [fermi], None),
            (two | {"hypervisor": "s== KVM"}, [fermi], "hypervisor is LXC"),
        ):
            self.check(specs, held, part)
        self.check(two | {"hypervisor": "s!= KVM"}, [fermi], "hypervisor is None", host=None)

    def test_each_request_group_finds_its_own(self) -> None:
        specs = {
            "resources1:PGPU": "1",
            f"trait1:{FERMI}": "required",
            "resources2:PGPU": "1",
            f"trait2:{KEPLER}": "required",
        }
        fermi = HeldGPUs(1, "fermi", lambda: frozenset({FERMI}))
        kepler = HeldGPUs(1, "kepler", lambda: frozenset({KEPLER}))
        self.check(specs, [fermi, kepler], None)
        self.check(specs, [fermi, fermi], KEPLER)


class OtherProductTest(MismatchTestCase):
    def test_table(self) -> None:
        known = HeldGPUs(1, "hopper", frozenset, model="H200", memory_mib=143771)
        unknown = HeldGPUs(1, "hopper", frozenset)
        for words, held, part in (
            ({"gpu:model": "h200"}, [known, known], None),
            ({"gpu:model": "h100"}, [known, known], "holds a H200, and its flavor asks for"),
            ({"gpu:model": "s!= h100"}, [known, unknown], "of no known name"),
            ({"gpu:memory_mib": ">= 81920"}, [known, known], None),
            ({"gpu:memory_mib": "<= 81920"}, [known, known], "memory is 143771 MiB"),
            ({"gpu:memory_mib": ">= 1"}, [known, unknown], "memory is unknown"),
        ):
            reason = flavor_mismatch.other_product(whole({"gpus": "2"} | words), held)
            self.assertSaid(part, reason, words)


class ApartTest(unittest.TestCase):
    def apart(self, held: list[HeldGPUs], **words: str) -> str | None:
        specs = {key.replace("_", ":", 1): value for key, value in words.items()}
        specs["gpus"] = str(sum(group.count for group in held))
        return flavor_mismatch.apart(whole(specs), held)

    def place(self, numa_node: int | None, circle: int, trait: str = FERMI) -> HeldGPUs:
        return HeldGPUs(1, None, lambda: frozenset({trait}), numa_node=numa_node, circle=circle)

    def test_table(self) -> None:
        numa, nvlink = {"gpu_topology": "numa"}, {"gpu_topology": "nvlink"}
        for words, places, together in (
            (numa, [(1, 0), (1, 1)], True),
            (numa, [(0, 0), (1, 0)], False),
            (numa, [(None, 0), (None, 0)], False),
            (numa, [(1, 0)], True),
            (nvlink, [(0, 0), (1, 0)], True),
            (nvlink, [(0, 0), (0, 1)], False),
            (nvlink | {"gpu_topology_policy": "preferred"}, [(0, 0), (0, 1)], True),
            ({"gpu_topology": "any"}, [(0, 0), (0, 1)], True),
        ):
            with self.subTest(words, places=places):
                held = [self.place(*place) for place in places]
                self.assertEqual(together, self.apart(held, **words) is None)

    def test_each_request_group_has_its_own_island(self) -> None:
        specs = {"gpu:topology": "numa"}
        for suffix, trait in (("1", FERMI), ("2", KEPLER)):
            specs |= {f"resources{suffix}:PGPU": "2", f"trait{suffix}:{trait}": "required"}
        gpu_request = whole(specs)
        fermi = [self.place(0, 0), self.place(0, 1)]
        for nodes, expected in (((1, 1), True), ((0, 1), False)):
            kepler = [self.place(node, 2 + node, KEPLER) for node in nodes]
            with self.subTest(nodes=nodes):
                self.assertEqual(
                    expected, flavor_mismatch.apart(gpu_request, fermi + kepler) is None
                )


SMALL = VGPUType("nvidia-63", "GRID P4-1Q")
LARGE = VGPUType("nvidia-66", "GRID P4-8Q")


class VGPUMismatchTest(MismatchTestCase):
    def test_table(self) -> None:
        for specs, held, reason in (
            ({"vgpus": "= 1"}, [LARGE], None),
            ({"vgpus": "2", "vgpu_type": "s== nvidia-63"}, [SMALL, SMALL], None),
            ({"vgpus": "= 1", "vgpu_type": "grid p4-1q"}, [SMALL], None),
            ({"resources:VGPU": "1", "vgpu_type": "nvidia-66"}, [LARGE], None),
            ({"resources:VGPU": "2"}, [SMALL], None),  # the other one may be Nova's own
            ({"resources1:VGPU": "1"}, [SMALL], None),
            ({}, [], None),
            ({"gpus": "= 1"}, [], None),
            ({"vgpus": "= 2"}, [LARGE], "asks for 2 vGPUs, and the instance holds 1"),
            ({"vgpus": "= 1"}, [], "asks for 1 vGPUs, and the instance holds 0"),
            ({"vgpus": "= 1", "vgpu_type": "nvidia-63"}, [LARGE], "nvidia_63, not nvidia-66"),
            ({}, [SMALL], "holds 1 vGPUs, and its flavor asks for none"),
            ({"gpus": "= 1"}, [SMALL], "its flavor asks for none"),
        ):
            self.assertSaid(reason, flavor_mismatch.vgpu_mismatch(request.of(specs), held), specs)


class MoreThanAGuestCanHaveTest(unittest.TestCase):
    def test_of_each_type(self) -> None:
        one, two = (VGPUType(f"nvidia-{n}", f"L40S-{n}B", per_guest=n) for n in (1, 2))
        unknown = VGPUType("nvidia-3")
        for held in ([], [one], [one, two, two], [unknown] * 9):
            self.assertIsNone(flavor_mismatch.more_than_a_guest_can_have(held))
        reason = flavor_mismatch.more_than_a_guest_can_have([unknown, two, one, one])
        self.assertEqual(
            "a guest can have 1 vGPU of type L40S-1B, and the instance holds 2", reason
        )


class OtherVGPUFactsTest(MismatchTestCase):
    def group(self, product: Product, memory_mib: int | None) -> VGPUGroup:
        facts = VGPUType("nvidia-64", "GRID P4-2Q", memory_mib, heads=memory_mib and 4)
        return VGPUGroup(group_key(product, facts.id), product, facts, {})

    def test_table(self) -> None:
        known = self.group(Product("10de", "1bb3", "Tesla P4", "pascal", 2048), 2048)
        unknown = self.group(Product("10de", "1bb3"), None)
        for specs, held, reason in (
            ({}, [known], None),
            ({"resources:VGPU": "1"}, [known], None),
            ({"vgpus": "2"}, [known, unknown], None),
            ({"vgpus": "1", "gpu:memory_mib": ">= 2048"}, [known], None),
            ({"vgpus": "1", "gpu:memory_mib": "== 1024"}, [known], "that of nvidia-64 is 2048"),
            ({"vgpus": "2", "gpu:memory_mib": ">= 1"}, [known, unknown], "nvidia-64 is unknown"),
            ({"vgpus": "1", "gpu_arch": "pascal", "gpu:model": "<in> P4"}, [known], None),
            ({"vgpus": "1", "gpu_arch": "fermi"}, [known], "gpu_arch fermi, but that of nvidia-64"),
            ({"vgpus": "1", "gpu:model": "s!= a"}, [unknown], "gpu:model s!= a, but that of"),
            ({"vgpus": "1", "gpu:heads": "2"}, [known], None),
            (
                {"vgpus": "1", "gpu:heads": "<= 2"},
                [known],
                "gpu:heads <= 2, but that of nvidia-64 is 4",
            ),
            ({"vgpus": "1", "gpu:heads": "1"}, [unknown], "nvidia-64 is unknown"),
            ({"gpus": "1", "vgpus": "1", "gpu:memory_mib": "81920"}, [known], None),
        ):
            vgpu_request = request.of(specs).vgpus
            mismatch = vgpu_request and flavor_mismatch.other_vgpu_facts(vgpu_request, held)
            self.assertSaid(reason, mismatch, specs)


class NotBesideTest(MismatchTestCase):
    def test_table(self) -> None:
        near, far = cards.placed("0000:04:00.0", 0), cards.placed("0000:84:00.0", 1)
        nic = Neighbour(0x020000, numa_node=0)
        by_nic, by_nvme = (
            Arrangement(near=near, near_policy=TopologyPolicy.REQUIRED)
            for near in (Near.NIC, Near.NVME)
        )
        for arrangement, held, neighbours, reason in (
            (Arrangement(near=Near.NIC), [far], [nic], None),
            (by_nic, [near], [nic], None),
            (by_nic, [], [], None),
            (by_nic, [near, far], [nic], "nic, but 1 of its 2 GPUs are on another NUMA node"),
            (by_nvme, [near], [nic], "gpu:near nvme, but the instance has no such device"),
        ):
            mismatch = flavor_mismatch.not_beside(arrangement, held, neighbours)
            self.assertSaid(reason, mismatch, arrangement)
