# SPDX-License-Identifier: Apache-2.0
"""Which machines the lab says it runs on"""

from __future__ import annotations

import subprocess
import unittest

from lab.bare import base
from lab.cloud import settings
from tools import tiers


class ReleasesTest(unittest.TestCase):
    def test_it_names_those_on_which_ci_runs_the_demo(self) -> None:
        demos = [part for part in (*tiers.RUN, *tiers.LONG) if part.command == "tools/lab demo"]
        tried = sorted(str(part.debian) for part in demos)
        self.assertEqual([str(release) for release in sorted(base.CODENAMES)], tried)
        named = f"Debian {' or '.join(tried)}"
        usage = subprocess.run(
            (settings.ROOT / "tools/lab", "--help"), capture_output=True, check=True, text=True
        ).stdout
        self.assertIn(f"Needs {named}, and root;", usage)
        for path in ("README.rst", "lab/README.rst"):
            self.assertIn(named, (settings.ROOT / path).read_text())
