# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.cloud import steps


class StepsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "apt.log"
        self.out = self.useFixture(fixtures.StringStream("stdout")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", self.out))

    def test_failure_names_the_log_and_shows_its_end(self) -> None:
        script = "for n in $(seq 40); do echo line $n; done; exit 3"

        def failing() -> None:
            with steps.step("Debian packages", self.log):
                steps.run(["sh", "-c", script], self.log)

        text = str(self.assertRaises(steps.Failed, failing))
        self.assertIn("Debian packages: ", text)
        self.assertIn("ended with status 3", text)
        self.assertIn(str(self.log), text)
        self.assertIn("line 40", text)
        self.assertNotIn("line 20\n", text)
