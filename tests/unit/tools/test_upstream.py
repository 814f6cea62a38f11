# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

from tools.testing import suites, upstream

MOVES, VFIO = suites.BY_NAME["moves"], suites.BY_NAME["vfio"]
READ, APART = "nova_gpu/virt/driver.py", "nova_gpu/osc/show.py"


class SameTest(unittest.TestCase):
    """A clone, in which somebody works."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.theirs = pathlib.Path(folder.name, "theirs")
        self.ours = pathlib.Path(folder.name, "ours")
        self.enterContext(
            mock.patch.dict(
                os.environ,
                {
                    **{f"GIT_{who}_NAME": "nobody" for who in ("AUTHOR", "COMMITTER")},
                    **{f"GIT_{who}_EMAIL": "nobody@example.org" for who in ("AUTHOR", "COMMITTER")},
                    "GIT_CEILING_DIRECTORIES": folder.name,
                    "GIT_CONFIG_GLOBAL": os.devnull,
                },
            )
        )
        self.theirs.mkdir()
        self.git(self.theirs, "init", "-q", "-b", "main")
        self.commit(self.theirs, READ, APART, ".gitignore")
        self.clone()

    def git(self, where: pathlib.Path, *words: str) -> str:
        line = ("git", *words)
        return subprocess.run(line, cwd=where, check=True, capture_output=True, text=True).stdout

    def clone(self, *words: str) -> None:
        self.git(self.theirs.parent, "clone", "-q", *words, f"file://{self.theirs}", "ours")

    def write(self, where: pathlib.Path, *names: str) -> None:
        for name in names:
            path = where / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write("/.tools/\n")

    def commit(self, where: pathlib.Path, *names: str) -> None:
        self.write(where, *names)
        self.git(where, "add", "--all")
        self.git(where, "commit", "-q", "-m", "Change it")

    def is_same(self) -> bool:
        found = upstream.same((MOVES, VFIO), self.ours)
        self.assertLessEqual({*found}, {"moves"})  # of no other suite is it asked
        return bool(found)

    def test_what_it_says(self) -> None:
        head = self.git(self.ours, "rev-parse", "HEAD")[:9]
        self.assertEqual(
            f"nothing that it reads differs from origin's main branch ({head}); "
            "tools/test moves, or --all, runs it",
            str(upstream.same((MOVES,), self.ours)["moves"]),
        )

    def test_what_it_does_not_read(self) -> None:
        self.commit(self.ours, APART)
        self.write(self.ours, "README.rst", ".tools/passed.json", "tests/unit/test_new.py")
        self.assertTrue(self.is_same())

    def test_not_committed(self) -> None:
        self.write(self.ours, READ)
        self.assertFalse(self.is_same())
        self.git(self.ours, "add", READ)
        self.assertFalse(self.is_same())
        self.git(self.ours, "checkout", "-q", "HEAD", READ)
        self.assertTrue(self.is_same())
        self.write(self.ours, "nova_gpu/virt/new one.py")
        self.assertFalse(self.is_same())

    def test_gone_and_renamed(self) -> None:
        for change in (("rm", "-q", READ), ("mv", READ, "doc.rst")):
            self.git(self.ours, *change)
            self.assertFalse(self.is_same(), change)
            self.git(self.ours, "reset", "-q", "--hard")

    def test_committed_on_a_branch(self) -> None:
        self.git(self.ours, "switch", "-q", "-c", "topic")
        self.assertTrue(self.is_same())
        self.commit(self.ours, READ)
        self.commit(self.ours, APART)
        self.assertFalse(self.is_same())
        # Others may review it there; it is not in the main branch.
        self.git(self.ours, "push", "-q", "-u", "origin", "topic")
        self.assertFalse(self.is_same())
        self.git(self.ours, "push", "-q", "origin", "topic:next")
        self.git(self.theirs, "merge", "-q", "next")
        self.git(self.ours, "fetch", "-q")
        self.assertTrue(self.is_same())

    def test_what_others_did_since(self) -> None:
        """The main branch is ahead, in what the suite reads."""
        self.commit(self.theirs, READ)
        self.git(self.ours, "fetch", "-q")
        self.assertTrue(self.is_same())
        self.commit(self.ours, APART)
        self.assertTrue(self.is_same())

    def test_nothing_to_compare_with(self) -> None:
        self.git(self.ours, "remote", "rename", "origin", "other")
        self.assertFalse(self.is_same())
        self.git(self.ours, "remote", "remove", "other")
        self.assertFalse(self.is_same())
        self.git(self.ours, "switch", "-q", "--orphan", "new")
        self.assertFalse(self.is_same())
        (self.ours / ".git").rename(self.ours / "other")
        self.assertFalse(self.is_same())

    def test_a_history_that_is_cut_off(self) -> None:
        self.commit(self.theirs, READ)
        self.ours.rename(self.ours.with_name("whole"))
        self.clone("--depth", "1")
        self.assertTrue(self.is_same())
        self.commit(self.theirs, READ)
        self.git(self.ours, "fetch", "-q", "--depth", "1")
        self.commit(self.ours, APART)
        self.assertFalse(self.is_same())  # no common commit is known
