# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.vgpu import mig


class SlotNumberTest(unittest.TestCase):
    def test_there_and_back(self) -> None:
        for gpu_instance, compute_instance, number in ((0, 0, 0), (9, 0, 900), (14, 7, 1407)):
            self.assertEqual(number, mig.slot_number(gpu_instance, compute_instance))
            self.assertEqual((gpu_instance, compute_instance), mig.of_slot(number))

    def test_no_two_have_one(self) -> None:
        every = [(gi, ci) for gi in range(120) for ci in range(120)]
        numbers = [mig.slot_number(*each) for each in every]
        known = [each for each in numbers if each is not None]
        self.assertEqual(len(known), len(set(known)))
        self.assertIsNone(mig.slot_number(1, 100))
        self.assertIsNone(mig.slot_number(10_000, 0))
