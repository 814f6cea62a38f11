# SPDX-License-Identifier: Apache-2.0
"""What is printed of walks, in stestr's lines."""

from __future__ import annotations

import collections
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TextIO

from tests.cloud import oracle
from tests.matrix import axes, plans, walks
from tests.matrix.branches import Found

PREFIX = "tests.matrix."
# Characters of a text that are repeated at the end: those of an error, in a traceback
_MOST = 500
_HOST = re.compile(r"host\d")


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
        self._again: set[walks.Walk] = set()
        self._failures: list[str] = []

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def ended(
        self, name: str, seconds: float, notes: Sequence[str], texts: Sequence[str], walk: object
    ) -> None:
        """Say how a test went: with *texts* it has failed.

        :param walk: what shows the failure again
        """
        self.counts["failed" if texts else "passed"] += 1
        self.say(f"{{0}} {PREFIX}{name} [{seconds:.3f}s] ... {'FAILED' if texts else 'ok'}")
        shown = [*texts, f"python -m tests.matrix '{walk}'"] if texts else []
        for text in (*notes, *shown):
            self.say(f"    {text}")
        if texts:
            self._failures.append(f"seed {self.seed}: {name}")
            self._failures += [f"    {text[-_MOST:]}" for text in shown]

    def take(self, outcome: Found) -> walks.Walk | None:
        """Say how a walk went, or return the one to compare it with first, if it is not known."""
        if outcome.walk.setup.flavor == axes.PLAIN:
            if self._is_wanted_again(outcome):
                self._again.add(outcome.walk)
                return outcome.walk
            self._twins[outcome.walk] = outcome
            self._tell(outcome, [])
            for other in self._waiting.pop(outcome.walk, ()):
                self._tell(other, self._differences(other))
            return None
        twin = plans.twin(outcome.walk) if self._is_doubtful(outcome) else None
        if twin is None or twin in self._twins:
            self._tell(outcome, self._differences(outcome))
            return None
        self._waiting.setdefault(twin, []).append(outcome)
        return twin

    def _is_wanted_again(self, outcome: Found) -> bool:
        """Return whether a recorded walk has made the call that this twin of it has not.

        On a busy machine an operation before that call may have ended by a timeout.
        """
        others = self._waiting.get(outcome.walk, ())
        is_recorded = any(other.is_hit and other.walk in self._recorded for other in others)
        return is_recorded and not outcome.is_hit and outcome.walk not in self._again

    def _is_doubtful(self, outcome: Found) -> bool:
        """Return whether it did not simply go as Nova has it."""
        expected_status = plans.status_after(outcome.walk)
        is_there = outcome.status == (expected_status if expected_status != "DELETED" else "gone")
        return bool(outcome.differences or outcome.changed) or not is_there

    def _tell(self, outcome: Found, differences: Iterable[oracle.Difference]) -> None:
        """Say how a walk went; what was wrong one step earlier was said there."""
        name = str(outcome.walk)
        differences = list(differences)
        known = self._kinds.get(walks.Walk(outcome.walk.setup, outcome.walk.steps[:-1]), set())
        self._kinds[outcome.walk] = known | {difference.kind for difference in differences}
        differences = [difference for difference in differences if difference.kind not in known]
        texts = (
            [outcome.error] if outcome.error else [str(difference) for difference in differences]
        )
        is_missed = outcome.walk.steps and outcome.walk.steps[-1].outage and not outcome.is_hit
        notes = ["the call was not made"] if is_missed else []
        if is_missed and outcome.walk in self._recorded and not texts:
            notes, texts = [], notes
        self.ended(name, outcome.seconds, notes, texts, name)

    def _differences(self, outcome: Found) -> Iterator[oracle.Difference]:
        """Yield what is wrong, but for what is wrong without GPUs as well: that is Nova's."""
        twin = self._twins.get(plans.twin(outcome.walk) or outcome.walk)
        kinds = {difference.kind for difference in twin.differences} if twin else set()
        yield from (
            difference for difference in outcome.differences if difference.kind not in kinds
        )
        changed = {_anywhere(difference) for difference in twin.changed} if twin else set()
        yield from (
            difference for difference in outcome.changed if _anywhere(difference) not in changed
        )
        if twin is None or twin.is_hit != outcome.is_hit or twin.error or outcome.error:
            return
        is_refused = outcome.is_refused and not outcome.status.startswith("ERROR")
        if not (is_refused or plans.has_rivals(outcome.walk)):
            yield from oracle.same_outcome(twin.instance, outcome.instance)

    def close(self, seconds: float) -> bool:
        """Say how it went, at last what has failed, and return whether all went well."""
        for outcome in itertools.chain.from_iterable(self._waiting.values()):
            self._tell(outcome, self._differences(outcome))
        count = sum(self.counts.values())
        processor_s = sum(os.times()[:4])  # of this process and those that it has waited for
        self.say(
            f"{count} walks in {seconds:.0f} s ({60 * count / max(seconds, 1):.0f} per minute; "
            f"{processor_s / max(count, 1):.1f} s of a processor each): "
            f"{self.counts['passed']} passed, {self.counts['failed']} failed. seed {self.seed}"
        )
        for text in self._failures:
            self.say(text)
        return count > 0 and not self.counts["failed"]


def _anywhere(difference: oracle.Difference) -> str:
    """Return the text without the host: a walk and its twin may be on different ones."""
    return _HOST.sub("host", difference.text)
