# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor import held as holding
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.held import Held

FERMI = "CUSTOM_GPU_ARCH_FERMI"
KEPLER = "CUSTOM_GPU_ARCH_KEPLER"


class MismatchTest(unittest.TestCase):
    def check(
        self, specs: dict[str, str], held: list[Held], part: str | None, host: str | None = "LXC"
    ) -> None:
        with self.subTest(specs=specs, held=held):
            reason = holding.mismatch(request.parse(specs), held, host)
            if part is None:
                self.assertIsNone(reason)
            else:
                self.assertIn(part, reason or "no reason")

    def test_table(self) -> None:
        fermi = Held(2, "fermi", frozenset({"CUSTOM_GPU", FERMI}))
        kepler = Held(2, "kepler", frozenset({"CUSTOM_GPU", KEPLER}))
        nameless = Held(2, None, frozenset({"CUSTOM_GPU", "CUSTOM_GPU_ARCH_UNKNOWN"}))
        two = {"gpus": "= 2"}
        for specs, held, part in (
            (two, [fermi], None),
            (two, [nameless], None),
            (two, [], "holds 0 GPUs and its flavor asks for 2"),
            (two, [fermi, kepler], "holds 4 GPUs"),
            ({}, [], None),
            ({}, [fermi], "holds 2 GPUs and its flavor asks for 0"),
            (two | {"gpu_arch": "fermi"}, [fermi], None),
            (two | {"gpu_arch": "fermi"}, [kepler], "architecture kepler"),
            (two | {"gpu_arch": "s!= kepler"}, [nameless], "architecture unknown"),
            ({"gpus": "4", "gpu_arch": "fermi"}, [fermi, kepler], "architecture kepler"),
            (two | {f"trait:{FERMI}": "required"}, [fermi], None),
            (two | {f"trait:{FERMI}": "required"}, [kepler], FERMI),
            (two | {f"trait:{KEPLER}": "forbidden"}, [kepler], f"!{KEPLER}"),
            (two | {"trait:CUSTOM_GPU_OF_AN_OPERATOR": "required"}, [fermi], None),
            (two | {"trait:HW_GPU_API_VULKAN": "required"}, [fermi], None),
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
        fermi = Held(1, "fermi", frozenset({FERMI}))
        kepler = Held(1, "kepler", frozenset({KEPLER}))
        self.check(specs, [fermi, kepler], None)
        self.check(specs, [fermi, fermi], KEPLER)


class OtherProductTest(unittest.TestCase):
    def test_table(self) -> None:
        known = Held(1, "hopper", frozenset(), model="H200", memory_mib=143771)
        unknown = Held(1, "hopper", frozenset())
        for words, held, part in (
            ({"gpu:model": "h200"}, [known, known], None),
            ({"gpu:model": "h100"}, [known, known], "holds a H200, its flavor asks for gpu:model"),
            ({"gpu:model": "s!= h100"}, [known, unknown], "of no known name"),
            ({"gpu:memory_mib": ">= 81920"}, [known, known], None),
            ({"gpu:memory_mib": "<= 81920"}, [known, known], "memory is 143771 MiB"),
            ({"gpu:memory_mib": ">= 1"}, [known, unknown], "memory is unknown"),
        ):
            asked = request.parse({"gpus": "2"} | words)
            assert asked
            reason = holding.other_product(asked, held)
            with self.subTest(words=words):
                if part is None:
                    self.assertIsNone(reason)
                else:
                    self.assertIn(part, reason or "no reason")


class ApartTest(unittest.TestCase):
    def apart(self, held: list[Held], **words: str) -> str | None:
        specs = {key.replace("_", ":", 1): value for key, value in words.items()}
        asked = request.parse({"gpus": str(sum(each.count for each in held))} | specs)
        assert asked
        return holding.apart(asked, held)

    def place(self, numa_node: int | None, circle: int, trait: str = FERMI) -> Held:
        return Held(1, None, frozenset({trait}), numa_node=numa_node, circle=circle)

    def test_numa(self) -> None:
        together = [self.place(1, 0), self.place(1, 1)]
        for held, expected in (
            (together, True),
            ([self.place(0, 0), self.place(1, 0)], False),
            ([self.place(None, 0), self.place(None, 0)], False),
            ([self.place(1, 0)], True),
        ):
            with self.subTest(held=held):
                self.assertEqual(expected, self.apart(held, gpu_topology="numa") is None)

    def test_nvlink(self) -> None:
        for held, expected in (
            ([self.place(0, 0), self.place(1, 0)], True),
            ([self.place(0, 0), self.place(0, 1)], False),
        ):
            with self.subTest(held=held):
                self.assertEqual(expected, self.apart(held, gpu_topology="nvlink") is None)
                self.assertIsNone(self.apart(held, gpu_topology="any"))
        preferred = {"gpu_topology": "nvlink", "gpu_topology_policy": "preferred"}
        self.assertIsNone(self.apart([self.place(0, 0), self.place(0, 1)], **preferred))

    def test_each_request_group_has_its_own_island(self) -> None:
        specs = {"gpu:topology": "numa"}
        for suffix, trait in (("1", FERMI), ("2", KEPLER)):
            specs |= {f"resources{suffix}:PGPU": "2", f"trait{suffix}:{trait}": "required"}
        asked = request.parse(specs)
        assert asked
        fermi = [self.place(0, 0), self.place(0, 1)]
        for nodes, expected in (((1, 1), True), ((0, 1), False)):
            kepler = [self.place(node, 2 + node, KEPLER) for node in nodes]
            with self.subTest(nodes=nodes):
                self.assertEqual(expected, holding.apart(asked, fermi + kepler) is None)
