# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import unittest

from nova_gpu.core import vgpu_held, vgpu_request
from nova_gpu.core.stats import Divided
from nova_gpu.core.vgpu import VGPUType

SMALL = VGPUType("nvidia-63", "GRID P4-1Q")
LARGE = VGPUType("nvidia-66", "GRID P4-8Q")


class TestMostFree(unittest.TestCase):
    def test_of_the_type_that_is_asked_for(self) -> None:
        divided = Divided(1, 1, (("nvidia-63", "GRID P4-1Q", 8), ("nvidia-66", None, 1)))
        for specs, count in (
            ({"vgpus": "1"}, 8),
            ({"vgpus": "1", "vgpu_type": "nvidia-66"}, 1),
            ({"vgpus": "1", "vgpu_type": "GRID P4-1Q"}, 8),
            ({"vgpus": "1", "vgpu_type": "GRID P4-8Q"}, 0),
        ):
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
