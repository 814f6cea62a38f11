# SPDX-License-Identifier: Apache-2.0
"""Suites of which nothing differs from the main branch of ``origin``, where CI has run them.

A suite that has ``changed_only`` runs for a commit where that changes a file which the suite reads,
as :data:`unchanged.APART` has it. What differs is seen from where this branch left that one: its
commits, what is not committed, and what git does not know yet.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.testing import unchanged
from tools.testing.environment import ROOT
from tools.testing.suites import Suite

# What git calls where a clone came from, and the branch there that a clone begins with
_MAIN = "refs/remotes/origin/HEAD"


@dataclasses.dataclass(frozen=True)
class Same:
    """That nothing which *suite* reads differs from *commit*, where the main branch was left."""

    suite: str
    commit: str

    def __str__(self) -> str:
        return (
            f"nothing that it reads differs from origin's main branch ({self.commit[:9]}); "
            f"tools/test {self.suite}, or --all, runs it"
        )


def same(selected: Sequence[Suite], root: Path = ROOT) -> Mapping[str, Same]:
    """Those of the suites that have ``changed_only`` and of which nothing differs, by their names;
    none where git does not say what does: without a history, a clone's origin or git itself."""
    names = [suite.name for suite in selected if suite.changed_only]
    if not names:
        return {}
    try:
        commit = _git(root, "merge-base", "HEAD", _MAIN).strip()
        listed = (
            _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", commit),
            _git(root, "ls-files", "--others", "--exclude-standard", "-z"),
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    changed = [name for each in listed for name in each.split("\0") if name]
    return {
        suite: Same(suite, commit)
        for suite in names
        if all(unchanged.is_apart(suite, name) for name in changed)
    }


def _git(root: Path, *words: str) -> str:
    found = subprocess.run(("git", *words), cwd=root, capture_output=True, check=True)
    return os.fsdecode(found.stdout)
