# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from benchmarks import vgpus


class TestVGPUs(base.BaseTestCase):
    def test_reads_no_file_twice(self) -> None:
        """The benchmark itself refuses to time a look that misses something."""
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        mediated, profiles = vgpus.rows(root, runs=1, count=1)
        self.assertIn("1 cards, 20 types, 32 VFs: mediated devices, 2592 files", mediated.name)
        self.assertIn("profiles, 96 files", profiles.name)
        for row in (mediated, profiles):
            # With room for a busy machine: the program itself times eight cards.
            self.assertGreater(row.ratio or 0, 1 / 4)
