# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova import objects
from oslotest import base

from nova_gpu.virt import flavors


class RequestOfTest(base.BaseTestCase):
    def test_of_a_flavor_that_came_without(self) -> None:
        """Nova's object raises for what it was not read with."""
        objects.register_all()
        found = [
            flavors.request_of_flavor(flavor).extra_specs
            for flavor in (
                objects.Flavor(flavorid="read without"),
                objects.Flavor(extra_specs={}),
                objects.Flavor(extra_specs={"gpus": "= 2"}),
            )
        ]
        self.assertEqual([{}, {}, {"gpus": "= 2"}], found)

    def test_of_an_instance_that_came_without(self) -> None:
        objects.register_all()
        self.assertEqual({}, flavors.request_of(objects.Instance(uuid="anybody")).extra_specs)
        flavor = objects.Flavor(extra_specs={"gpus": "1"})
        instance = objects.Instance(flavor=flavor)
        self.assertEqual({"gpus": "1"}, flavors.request_of(instance).extra_specs)
