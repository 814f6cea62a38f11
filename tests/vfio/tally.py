# SPDX-License-Identifier: Apache-2.0
"""What the boots of one run did together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tools.vfiolab.boot import Boot

_TEST = re.compile(r"^ *[\d.]+ s  \S+.* \.\.\. (ok|FAIL|ERROR|skipped .*)$", re.MULTILINE)


class Tally:
    """Counts the lines of tests.cloud.running.Result, however they come in."""

    def __init__(self) -> None:
        self._pending = ""
        self.ran = 0
        self.failed = 0
        self.panics: list[Boot] = []

    def read(self, text: str) -> None:
        complete, _, self._pending = (self._pending + text).rpartition("\n")
        for match in _TEST.finditer(complete):
            self.ran += 1
            self.failed += match[1] in ("FAIL", "ERROR")

    def lost(self, boot: Boot) -> None:
        self._pending = ""
        self.panics.append(boot)

    def closing(self, last: Boot, seconds: float) -> Sequence[str]:
        """In unittest's words, for who reads its output, with what befell the VM before them."""
        lines = [f"VM retried: {each.end.value} {each.reason}" for each in self.panics]
        ran = self.ran
        if last.status is None:
            ran += 1
            lines.append(f"ERROR: the VM: {last.end.value} {last.reason}".rstrip())
        return [*lines, f"Ran {ran} tests in {seconds:.3f}s"]
