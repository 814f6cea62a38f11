# SPDX-License-Identifier: Apache-2.0
"""What the VMs of one run did together, each in one or more boots."""

from __future__ import annotations

from collections.abc import Sequence

from lab.vm.boot import Boot
from tools import outcomes


class Tally:
    """Of one VM. It counts the lines of tests.cloud.running.Result, however they come in."""

    def __init__(self) -> None:
        self._pending = ""
        self.ran = 0
        self.failed = 0
        self.lost: list[Boot] = []
        self.last: Boot | None = None

    @property
    def passed(self) -> bool:
        return self.last is not None and self.last.status == 0 and not self.failed

    def read(self, text: str) -> str:
        """The lines that *text* completes, to be shown."""
        complete, newline, self._pending = (self._pending + text).rpartition("\n")
        for match in filter(None, map(outcomes.TEST_LINE.match, complete.splitlines())):
            self.ran += 1
            self.failed += match[2] == "FAILED"
        return complete + newline

    def lose(self, boot: Boot) -> str:
        """What there is to say of a boot that has to be repeated."""
        self._pending = ""
        self.lost.append(boot)
        return f"VM booted again after {self.ran} tests: {boot.end.value} {boot.reason}\n"


def closing(tallies: Sequence[Tally], seconds: float) -> Sequence[str]:
    """What befell the VMs, in lines as those of the tests, and how many tests there were."""
    lines = []
    ran = sum(each.ran for each in tallies)
    for each in tallies:
        lines += [f"VM retried: {boot.end.value} {boot.reason}" for boot in each.lost]
        if each.last is not None and each.last.status is None:
            ran += 1
            lines.append("{0} the VM ... FAILED")
            lines.append(f"{each.last.end.value} {each.last.reason}".rstrip())
    return [*lines, f"Ran {ran} tests in {seconds:.3f}s"]
