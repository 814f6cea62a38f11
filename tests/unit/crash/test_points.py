# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from tests.crash import points


class FunctionsTest(unittest.TestCase):
    def test_each_is_there(self) -> None:
        """The suite itself would say so after minutes."""
        for operation, functions in points.FUNCTIONS.items():
            for path in functions:
                with self.subTest(f"{operation}: {path}"):
                    owner, name = points.place(path)
                    self.assertTrue(callable(getattr(owner, name)))
