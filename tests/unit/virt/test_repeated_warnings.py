# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from oslo_log import log as logging
from oslotest import base

from nova_gpu.virt import repeated_warnings, threads

LOG = logging.getLogger("nova_gpu.virt.somewhere")


class RepeatsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.repeats = repeated_warnings.Repeats()

    def said(self, *texts: str) -> str:
        """What comes of a period that logs these"""
        before = len(self.log.output)
        with self.repeats.left_out(begins=True):
            for text in texts:
                LOG.warning("It lasts: %s", text)
        return str(self.log.output)[before:]

    def test_when_it_begins_changes_and_begins_anew(self) -> None:
        self.assertEqual("It lasts: a\n", self.said("a", "a"))
        self.assertEqual("", self.said("a"))
        self.assertEqual("It lasts: b\n", self.said("b"))
        self.assertEqual("It lasts: a\n", self.said("b", "a"))
        self.assertEqual("", self.said())
        self.assertEqual("It lasts: b\n", self.said("b"))

    def test_in_the_claims_of_a_period(self) -> None:
        self.said("a")
        with self.repeats.left_out():
            LOG.warning("It lasts: a")
            LOG.error("It lasts: b")
        self.assertEqual(2, self.log.output.count("\n"))
        self.assertEqual("", self.said("a", "b").replace("It lasts: b\n", ""))
        self.repeats = repeated_warnings.Repeats()  # another host's, in one process
        self.assertEqual("It lasts: a\n", self.said("a"))

    def test_errors_of_one_text(self) -> None:
        with self.repeats.left_out(begins=True):
            for error in (ValueError("a"), ValueError("a"), ValueError("b")):
                try:
                    raise error
                except ValueError:
                    LOG.exception("It failed")
        self.assertEqual(2, self.log.output.count("It failed"))

    def test_what_is_no_warning_or_of_others(self) -> None:
        with self.repeats.left_out(begins=True):
            for _ in range(2):
                LOG.info("something was done")
                logging.getLogger("nova.virt").warning("another's")
        for _ in range(2):
            LOG.warning("of a start")
        self.assertEqual(6, self.log.output.count("\n"))

    def test_in_threads_that_are_waited_for(self) -> None:
        for _ in range(3):
            with self.repeats.left_out(begins=True):
                threads.for_each(lambda card: LOG.error("Not clean: %s", card), "ab")
        self.assertEqual(["Not clean: a", "Not clean: b"], sorted(self.log.output.splitlines()))
