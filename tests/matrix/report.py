# SPDX-License-Identifier: Apache-2.0
"""What is printed of walks, in stestr's lines."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from typing import TextIO

from tests.cloud import oracle
from tests.matrix import axes, plans, walks
from tests.matrix.branches import Found

PREFIX = "tests.matrix."


class Report:
    """The lines of a run, and its counts.

    :param recorded: walks that are wrong as well if the call is not made that is to go wrong
    """

    def __init__(self, stream: TextIO, seed: int, recorded: Collection[walks.Walk] = ()) -> None:
        self.seed = seed
        self._recorded = recorded
        self.counts: collections.Counter[str] = collections.Counter()
        self._stream = stream
        self._twins: dict[walks.Walk, Found] = {}
        self._kinds: dict[walks.Walk, set[str]] = {}
        # By its twin, what cannot be judged before that
        self._waiting: dict[walks.Walk, list[Found]] = {}

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def line(self, name: str, seconds: float, status: str) -> None:
        self.say(f"{{0}} {PREFIX}{name} [{seconds:.3f}s] ... {status}")

    def take(self, found: Found) -> walks.Walk | None:
        """Say how a walk went, or return the one to compare it with first, if it is not known."""
        if found.walk.setup.flavor == axes.PLAIN:
            self._twins[found.walk] = found
            self._tell(found, [])
            for other in self._waiting.pop(found.walk, ()):
                self._tell(other, self._differences(other))
            return None
        twin = plans.twin(found.walk) if self._is_doubtful(found) else None
        if twin is None or twin in self._twins:
            self._tell(found, self._differences(found))
            return None
        self._waiting.setdefault(twin, []).append(found)
        return twin

    def _is_doubtful(self, found: Found) -> bool:
        """Return whether it did not simply go as Nova has it."""
        expected_status = plans.status_after(found.walk)
        is_there = found.status == (expected_status if expected_status != "DELETED" else "gone")
        return bool(found.differences or found.changed) or not is_there

    def _tell(self, found: Found, differences: Iterable[oracle.Difference]) -> None:
        """Say how a walk went; what was wrong one step earlier was said there."""
        name = str(found.walk)
        differences = list(differences)
        known = self._kinds.get(walks.Walk(found.walk.setup, found.walk.steps[:-1]), set())
        self._kinds[found.walk] = known | {each.kind for each in differences}
        differences = [each for each in differences if each.kind not in known]
        texts = [found.error] if found.error else [str(each) for each in differences]
        is_missed = found.walk.steps and found.walk.steps[-1].outage and not found.is_hit
        has_failed = bool(texts or (is_missed and found.walk in self._recorded))
        self.counts["failed" if has_failed else "passed"] += 1
        self.line(name, found.seconds, "FAILED" if has_failed else "ok")
        if is_missed:
            self.say("    the call was not made")
        for text in texts:
            self.say(f"    {text}")
        if has_failed:
            self.say(f"    python -m tests.matrix '{name}'")

    def _differences(self, found: Found) -> Iterator[oracle.Difference]:
        """Yield what is wrong, but for what is wrong without GPUs as well: that is Nova's."""
        twin = self._twins.get(plans.twin(found.walk) or found.walk)
        kinds = {each.kind for each in twin.differences} if twin else set()
        yield from (each for each in found.differences if each.kind not in kinds)
        changed = {each.text for each in twin.changed} if twin else set()
        yield from (each for each in found.changed if each.text not in changed)
        if twin is None or twin.is_hit != found.is_hit or twin.error or found.error:
            return
        is_refused = found.is_refused and not found.status.startswith("ERROR")
        if not (is_refused or plans.has_rivals(found.walk)):
            yield from oracle.same_outcome(twin.instance, found.instance)

    def close(self, seconds: float) -> bool:
        """Say how it went, and return whether all went well."""
        for found in itertools.chain.from_iterable(self._waiting.values()):
            self._tell(found, self._differences(found))
        count = sum(self.counts.values())
        processor_s = sum(os.times()[:4])  # of this process and those that it has waited for
        self.say(
            f"{count} walks in {seconds:.0f} s ({60 * count / max(seconds, 1):.0f} per minute; "
            f"{processor_s / max(count, 1):.1f} s of a processor each): "
            f"{self.counts['passed']} passed, {self.counts['failed']} failed. seed {self.seed}"
        )
        return count > 0 and not self.counts["failed"]
