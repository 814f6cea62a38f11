# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova import objects
from oslotest import base

from nova_gpu.virt import flavors


class ExtraSpecsTest(base.BaseTestCase):
    def test_of_a_flavor_that_came_without(self) -> None:
        """Nova's object raises for what it was not read with."""
        objects.register_all()
        found = [
            flavors.extra_specs(flavor)
            for flavor in (
                objects.Flavor(flavorid="read without"),
                objects.Flavor(extra_specs={}),
                objects.Flavor(extra_specs={"gpus": "= 2"}),
            )
        ]
        self.assertEqual([{}, {}, {"gpus": "= 2"}], found)

    def test_of_an_instance_that_came_without(self) -> None:
        objects.register_all()
        self.assertEqual({}, flavors.extra_specs_of(objects.Instance(uuid="anybody")))
        flavor = objects.Flavor(extra_specs={"gpus": "1"})
        instance = objects.Instance(flavor=flavor)
        self.assertEqual({"gpus": "1"}, flavors.extra_specs_of(instance))
