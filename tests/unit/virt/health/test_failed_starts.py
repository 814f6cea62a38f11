# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from oslotest import base

from nova_gpu.virt.health import failed_starts
from tests.fixtures import cards

ONE, TWO = cards.addresses("0000:3b:00.4", "0000:3b:00.5")
WHY = RuntimeError("vfio 0000:3b:00.4: error getting device from group 7")


class FailedStartsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.starts = failed_starts.FailedStarts()

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.starts.failed([ONE], WHY)

    def test_several_in_a_row(self) -> None:
        self.fail(2)
        self.assertEqual(frozenset(), self.starts.withheld())
        self.assertEqual("", self.log.output)
        self.fail(2)
        self.assertEqual({ONE}, self.starts.withheld())
        self.assertEqual(1, self.log.output.count(f"{ONE} is given to nobody new: 3 guests in a"))
        self.assertIn("error getting device from group 7", self.log.output)
        self.assertIn("sriov-manage -d, then -e", self.log.output)

    def test_one_that_starts_between(self) -> None:
        self.fail(2)
        self.starts.started([ONE, TWO])
        self.fail(2)
        self.assertEqual(frozenset(), self.starts.withheld())

    def test_over_when_it_was_enabled_anew(self) -> None:
        self.fail(3)
        self.starts.keep([ONE])
        self.assertEqual({ONE}, self.starts.withheld())
        self.starts.keep([TWO])
        self.assertEqual(frozenset(), self.starts.withheld())
