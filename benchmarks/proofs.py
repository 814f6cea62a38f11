# SPDX-License-Identifier: Apache-2.0
"""A start of nova-compute on a host with eight cards, by what is known of how clean they are.

python -m benchmarks.proofs
"""

from __future__ import annotations

import errno
import sys
import time
import unittest

from tests.fixtures import failing_calls
from tests.functional import test_cleaning


class _Starts(test_cleaning.CleaningTest):
    def runTest(self) -> None:
        state = self.state()

        def start(what: str) -> None:
            before, begun = len(self.cleaned.cards), time.monotonic()
            self.restart_host("host1")
            took = time.monotonic() - begun
            cleaned, reserved = len(self.cleaned.cards) - before, self.inventory()["reserved"]
            print(f"{what}: {took:.1f} s, {cleaned} cleaned, {reserved} of 8 reserved", flush=True)

        start("every card has a proof")
        self._forget()
        start("nothing is known of any card")
        with failing_calls.writes(state, errno.ENOSPC):
            start("full disk, every card has a proof")
        self._forget()
        with failing_calls.writes(state, errno.ENOSPC):
            start("full disk, nothing is known of any card")
        self.period()
        with failing_calls.writes(state, errno.EROFS):
            start("read-only state path, every card has a proof")
        with failing_calls.all_from(self.folder, 1, errno.EIO):
            start("proofs that cannot be read")
        self.period()

    def _forget(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()


if __name__ == "__main__":
    done = unittest.TextTestRunner(verbosity=0).run(unittest.TestSuite([_Starts("runTest")]))
    sys.exit(not done.wasSuccessful())
