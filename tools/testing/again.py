# SPDX-License-Identifier: Apache-2.0
"""A second try, alone, of the tests that failed while others ran beside them.

What fails twice has failed. What passes alone is unsteady: it counts as passed, and the closing
lines name it with what it said, since a test that needs a quiet machine has a fault of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from tools.testing.outcome import Failure, Outcome
from tools.testing.session import Result
from tools.testing.suites import Suite

# More than these have a common cause that a second try does not find gone.
MOST = 5
LIMIT_S = 900.0
# Their answer does not depend on what runs beside them.
_STEADY = ("style", "types")
# stestr's name, or unittest's: test_boots (tests.lxc.test_flavors.FlavorTest.test_boots) (gpus=2)
_NAME = re.compile(r"(?:^|.* \()(tests\.[\w.]+)")
# A module that cannot be imported, and what stands still, do so again.
_FOR_GOOD = re.compile(r"unittest\.loader\.|stestr ended with | ran out of time$")


def names(result: Result) -> tuple[str, ...] | None:
    """The identifiers of the tests to try again; none of them: the whole suite; None: nothing."""
    failures = result.outcome.failures
    if not failures or len(failures) > MOST or result.suite.name in _STEADY:
        return None
    if any(_FOR_GOOD.search(failure.test) for failure in failures):
        return None
    found = [_NAME.match(failure.test) for failure in failures]
    return tuple(dict.fromkeys(match[1] for match in found if match)) if all(found) else ()


def tried(result: Result, run: Callable[[Suite, Sequence[str]], Result]) -> Result:
    """*result* with what *run* finds when it runs the failed tests again."""
    tests = names(result)
    if tests is None:
        return result
    limit_s = min(LIMIT_S, result.suite.limit_s)
    second = run(dataclasses.replace(result.suite, limit_s=limit_s), tests)
    return dataclasses.replace(
        result,
        outcome=_joined(result.outcome, second.outcome, whole=not tests),
        seconds=result.seconds + second.seconds,
        cpu_s=result.cpu_s + second.cpu_s,
    )


def _joined(first: Outcome, second: Outcome, *, whole: bool) -> Outcome:
    """Skipped or not found at the second try is not passed: the first one's failures stay."""
    if second.failed or second.skips or not second.passed:
        return first + Outcome(failures=_new(first, second))
    steady = 0 if whole else first.passed
    return dataclasses.replace(
        first, passed=steady + second.passed, failures=(), unsteady=first.failures
    )


def _new(first: Outcome, second: Outcome) -> tuple[Failure, ...]:
    known = {failure.test for failure in first.failures}
    return tuple(failure for failure in second.failures if failure.test not in known)
