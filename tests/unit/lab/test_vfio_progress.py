# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import pathlib
import threading
import unittest

import fixtures
import testtools

from tests.vfio import progress


class BeginTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.outs = {part: folder / part for part in progress.PARTS}
        for out in self.outs.values():
            out.mkdir()
        self.ran: list[str] = []

    def begin(self, test: unittest.TestCase, part: str) -> bool:
        return progress.begin(test, part, self.outs[part])

    def twenty(self) -> list[unittest.TestCase]:
        """Twenty, that say when they are run."""
        return [Noting(name, self.ran) for name in map(str, range(20))]

    def test_who_is_first_and_again_after_his_vm_has_died(self) -> None:
        (test, other, *_) = self.twenty()
        self.assertTrue(self.begin(test, progress.CLOUD))
        self.assertFalse(self.begin(test, progress.HOST))
        self.assertTrue(self.begin(test, progress.CLOUD))
        self.assertTrue(self.begin(other, progress.HOST))

    def test_each_is_run_by_one(self) -> None:
        def work(part: str) -> None:
            out = self.outs[part]
            result = progress.Result(io.StringIO(), out, lambda: None)
            progress.run(self.twenty(), result, part, out)

        threads = [threading.Thread(target=work, args=(part,)) for part in progress.PARTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertCountEqual(map(str, range(20)), self.ran)


class Noting(unittest.TestCase):
    def __init__(self, name: str, ran: list[str]) -> None:
        super().__init__("runs")
        self._name, self._ran = name, ran

    def id(self) -> str:
        return self._name

    def runs(self) -> None:
        self._ran.append(self._name)
