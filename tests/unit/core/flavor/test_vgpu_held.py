# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import unittest

from nova_gpu.core.flavor import vgpu_held, vgpu_request
from nova_gpu.core.model import Product
from nova_gpu.core.scheduling.stats import Divided
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup, group_key

SMALL = VGPUType("nvidia-63", "GRID P4-1Q")
LARGE = VGPUType("nvidia-66", "GRID P4-8Q")


class TestMostFree(unittest.TestCase):
    def test_of_the_type_that_is_asked_for(self) -> None:
        free = (("nvidia-63", "GRID P4-1Q", 8), ("nvidia-66", None, 1))
        divided = Divided(1, 1, free, ((1024, 4), (8192, None)))
        for specs, count in (
            ({"vgpus": "1"}, 8),
            ({"vgpus": "1", "vgpu_type": "nvidia-66"}, 1),
            ({"vgpus": "1", "vgpu_type": "GRID P4-1Q"}, 8),
            ({"vgpus": "1", "vgpu_type": "GRID P4-8Q"}, 0),
            ({"vgpus": "1", "gpu:memory_mib": "2048"}, 1),
            ({"vgpus": "1", "gpu:memory_mib": "<= 8192"}, 8),
            ({"vgpus": "1", "gpu:memory_mib": "16384"}, 0),
            ({"vgpus": "1", "gpu:heads": "1", "gpu:memory_mib": "2048"}, 0),
            ({"vgpus": "1", "gpu:heads": "1"}, 8),
        ):
            asked = vgpu_request.parse(specs)
            assert asked
            with self.subTest(specs):
                self.assertEqual(count, vgpu_held.most_free(asked, divided))

    def test_of_a_host_that_does_not_say_what_they_have(self) -> None:
        divided = Divided(1, 1, (("nvidia-63", None, 8),))
        for specs, count in (({"vgpus": "1"}, 8), ({"vgpus": "1", "gpu:memory_mib": "1"}, 0)):
            asked = vgpu_request.parse(specs)
            assert asked
            with self.subTest(specs):
                self.assertEqual(count, vgpu_held.most_free(asked, divided))


class TestMismatch(unittest.TestCase):
    def test_what_fits(self) -> None:
        for specs, held in (
            ({"vgpus": "= 1"}, [LARGE]),
            ({"vgpus": "2", "vgpu_type": "s== nvidia-63"}, [SMALL, SMALL]),
            ({"vgpus": "= 1", "vgpu_type": "grid p4-1q"}, [SMALL]),
            ({"resources:VGPU": "1", "vgpu_type": "nvidia-66"}, [LARGE]),
            ({"resources:VGPU": "2"}, [SMALL]),  # the other one may be Nova's own
            ({"resources1:VGPU": "1"}, [SMALL]),
            ({}, []),
            ({"gpus": "= 1"}, []),
        ):
            with self.subTest(specs):
                self.assertIsNone(vgpu_held.mismatch(specs, held))

    def test_what_does_not(self) -> None:
        for specs, held, reason in (
            ({"vgpus": "= 2"}, [LARGE], "asks for 2 vGPUs, and the instance holds 1"),
            ({"vgpus": "= 1"}, [], "asks for 1 vGPUs, and the instance holds 0"),
            ({"vgpus": "= 1", "vgpu_type": "nvidia-63"}, [LARGE], "nvidia_63, not nvidia-66"),
            ({}, [SMALL], "holds 1 vGPUs, and its flavor asks for none"),
            ({"gpus": "= 1"}, [SMALL], "its flavor asks for none"),
        ):
            with self.subTest(specs):
                self.assertIn(reason, vgpu_held.mismatch(specs, held) or "")


class TestOtherFacts(unittest.TestCase):
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
            ({"vgpus": "1", "gpu:memory_mib": "== 1024"}, [known], "of nvidia-64 it is 2048"),
            ({"vgpus": "2", "gpu:memory_mib": ">= 1"}, [known, unknown], "it is not known"),
            ({"vgpus": "1", "gpu_arch": "pascal", "gpu:model": "<in> P4"}, [known], None),
            ({"vgpus": "1", "gpu_arch": "fermi"}, [known], "gpu_arch fermi, and of nvidia-64"),
            ({"vgpus": "1", "gpu:model": "s!= a"}, [unknown], "gpu:model s!= a, and of"),
            ({"vgpus": "1", "gpu:heads": "2"}, [known], None),
            (
                {"vgpus": "1", "gpu:heads": "<= 2"},
                [known],
                "gpu:heads <= 2, and of nvidia-64 it is 4",
            ),
            ({"vgpus": "1", "gpu:heads": "1"}, [unknown], "it is not known"),
            ({"gpus": "1", "vgpus": "1", "gpu:memory_mib": "81920"}, [known], None),
        ):
            with self.subTest(specs):
                found = vgpu_held.other_facts(specs, held)
                if reason is None:
                    self.assertIsNone(found)
                else:
                    self.assertIn(reason, found or "")
