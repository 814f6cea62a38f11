# SPDX-License-Identifier: Apache-2.0
"""Which machines the lab says it runs on"""

from __future__ import annotations

import re
import subprocess
import unittest

from lab.bare import base
from lab.cloud import settings


class ReleasesTest(unittest.TestCase):
    def test_it_names_those_on_which_ci_runs_the_demo(self) -> None:
        runs = (settings.ROOT / ".ci/run").read_text()
        tried = re.findall(r"^once_or_twice --debian (\d+) tools/lab demo$", runs, re.MULTILINE)
        self.assertEqual([str(release) for release in sorted(base.CODENAMES)], tried)
        named = f"Debian {' or '.join(tried)}"
        usage = subprocess.run(
            (settings.ROOT / "tools/lab", "--help"), capture_output=True, check=True, text=True
        ).stdout
        self.assertIn(f"Needs {named}, and root;", usage)
        for path in ("README.rst", "lab/README.rst"):
            self.assertIn(named, (settings.ROOT / path).read_text())
