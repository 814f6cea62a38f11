# SPDX-License-Identifier: Apache-2.0
"""That the driver is overrides and nothing else; what they do has tests of its own."""

from __future__ import annotations

import ast
import inspect

from nova.virt.libvirt import driver as libvirt_driver
from oslotest import base

from nova_gpu.virt import driver

# What a way to a running guest is wrapped in, and the container's mount
STATEMENTS = 5


class DriverTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        (self.driver,) = (
            each
            for each in ast.parse(inspect.getsource(driver)).body
            if isinstance(each, ast.ClassDef)
        )
        self.methods = {
            each.name: each for each in self.driver.body if isinstance(each, ast.FunctionDef)
        }

    def test_each_overrides_a_method_of_novas(self) -> None:
        self.assertGreater(len(self.methods), 25)
        own = {name for name in self.methods if not hasattr(libvirt_driver.LibvirtDriver, name)}
        self.assertEqual(set(), own)

    def test_each_calls_novas(self) -> None:
        for name, method in self.methods.items():
            with self.subTest(name):
                asked = [
                    each.attr
                    for each in ast.walk(method)
                    if isinstance(each, ast.Attribute)
                    and isinstance(each.value, ast.Call)
                    and isinstance(each.value.func, ast.Name)
                    and each.value.func.id == "super"
                ]
                self.assertEqual([name], asked)

    def test_each_is_short(self) -> None:
        for name, method in self.methods.items():
            with self.subTest(name):
                self.assertLessEqual(len(method.body), STATEMENTS)

    def test_what_is_not_named_goes_through_as_it_came(self) -> None:
        for name, method in self.methods.items():
            with self.subTest(name):
                self.assertEqual("args", method.args.vararg and method.args.vararg.arg)
                self.assertEqual("kwargs", method.args.kwarg and method.args.kwarg.arg)
