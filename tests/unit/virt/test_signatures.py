# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import unittest
from typing import Any

from nova_gpu.virt import signatures


class Parent:
    def spawn(self, context: Any, power_on: bool = True) -> Any: ...


class OfParentTest(unittest.TestCase):
    def test_overrides_have_the_parameters_of_what_they_override(self) -> None:
        @signatures.of_parent
        class Child(Parent):
            def spawn(self, context: Any, *args: Any, **kwargs: Any) -> Any: ...

        self.assertEqual(inspect.signature(Parent.spawn), inspect.signature(Child.spawn))

    def test_an_override_of_nothing_fails_where_it_is_imported(self) -> None:
        """As one does whose method a release of Nova has renamed."""
        with self.assertRaisesRegex(AttributeError, "spawn_guest"):

            @signatures.of_parent
            class Child(Parent):
                def spawn_guest(self) -> None: ...
