# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova import exception as nova_exception

from nova_gpu.api import extra_spec_validators


class ValidatorTest(unittest.TestCase):
    def test_values(self) -> None:
        registry = {validator.name: validator for validator in extra_spec_validators.register()}
        for name, value, wrong, allowed in (
            ("gpu:move", "cold", "always", "live or cold or none"),
            ("gpu:on_stop_move", "True", "perhaps", "true or false"),
            ("gpu:preemptible", "30m", "true", "a minimum time such as 90s, 30m, 2h or 1d"),
            ("gpu:on_preempt", "delete", "shelve", "stop or delete"),
        ):
            with self.subTest(name=name):
                registry[name].validate(name, value)
                with self.assertRaises(nova_exception.ValidationError) as caught:
                    registry[name].validate(name, wrong)
                self.assertIn(f"allowed: {allowed}", caught.exception.format_message())
