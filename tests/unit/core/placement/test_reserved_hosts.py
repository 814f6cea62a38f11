# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import datetime
import re
import unittest

from nova_gpu.core import names
from nova_gpu.core.placement import reserved_hosts

NOW = datetime.datetime(2026, 11, 24, 20, 0)
SECOND = datetime.timedelta(seconds=1)


class KeptTest(unittest.TestCase):
    def test_the_time_is_in_the_name(self) -> None:
        trait = reserved_hosts.trait(NOW)
        self.assertEqual("CUSTOM_GPU_KEPT_UNTIL_20261124T200000Z", trait)
        self.assertTrue(re.fullmatch("CUSTOM_[A-Z0-9_]{1,248}", trait), "Placement takes it")
        self.assertEqual(NOW, reserved_hosts.until(trait))
        self.assertFalse(names.is_own_trait(trait), "the driver leaves it")

    def test_until_it_is_over(self) -> None:
        later = reserved_hosts.trait(NOW + SECOND)
        traits = [reserved_hosts.trait(NOW), later, names.DRAINED, f"{names.KEPT_UNTIL}EVER"]
        self.assertEqual({later}, reserved_hosts.in_force(traits, NOW))
        self.assertEqual(set(), reserved_hosts.in_force(traits, NOW + SECOND))
