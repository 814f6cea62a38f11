# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import unittest

from tools import fuzz


class FuzzTest(unittest.TestCase):
    def test_every_property_is_run(self) -> None:
        """Each use of the decorator is in a module of which tests are run."""
        listed = subprocess.run(
            ["grep", "-rlE", r"^    @base\.fuzzed\(", str(fuzz.TESTS)],
            capture_output=True,
            text=True,
        ).stdout.split()
        paths = {path.removeprefix(f"{fuzz.ROOT}/").removesuffix(".py") for path in listed}
        names = list(fuzz._properties())
        self.assertEqual(len(names), len(set(names)))
        modules = {name.rsplit(".", 2)[0] for name in names}
        self.assertGreater(len(paths), 10)
        self.assertEqual(set(), {path.replace("/", ".") for path in paths} - modules)
