# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from osc_lib import exceptions

from nova_gpu.core import request
from nova_gpu.osc import flavor


class PropertiesTest(unittest.TestCase):
    def test_the_blueprints_flavor_counted(self) -> None:
        specs = flavor.properties(2, "fermi", "LXC", {})
        self.assertEqual(
            {
                "gpus": "= 2",
                "gpu_arch": "s== fermi",
                "hypervisor": "s== LXC",
                "resources:PGPU": "2",
            },
            specs,
        )
        asked = request.parse(specs)
        assert asked
        self.assertTrue(asked.counted)

    def test_operators_and_further_properties(self) -> None:
        more = {"trait:CUSTOM_RACK": "required", "gpus": "= 1"}
        specs = flavor.properties(1, "<or> fermi <or> kepler", None, more)
        self.assertEqual("<or> fermi <or> kepler", specs["gpu_arch"])
        self.assertEqual("required", specs["trait:CUSTOM_RACK"])
        self.assertNotIn("hypervisor", specs)

    def test_what_the_scheduler_would_refuse(self) -> None:
        for arguments, text in (
            ((0, None, None, {}), "for no GPU leave the property out"),
            ((1, "no/name", None, {}), "is not a name"),
            ((1, None, ">= LXC", {}), "compares numbers"),
            ((2, None, None, {"resources:PGPU": "3"}), "contradicts the options"),
            ((2, None, None, {"resources1:PGPU": "1"}), "says 3"),
            ((1, None, None, {"vgpu_type": "nvidia-35"}), "asks for no vGPU"),
        ):
            with (
                self.subTest(arguments=arguments),
                self.assertRaisesRegex(exceptions.CommandError, text),
            ):
                flavor.properties(*arguments)
