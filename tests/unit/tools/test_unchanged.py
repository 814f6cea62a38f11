# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time
import tomllib
import unittest
from collections.abc import Iterable
from unittest import mock

from tools.novalab import guide
from tools.testing import __main__ as command
from tools.testing import environment, lanes, lengths, suites, unchanged, upstream
from tools.testing.environment import ROOT
from tools.testing.outcome import Failure, Outcome, Skip
from tools.testing.session import Result

_DOTTED = re.compile(r"^[a-z_]+(?:[.:]\w+)+")
NOVA, MOVES, UNIT = (suites.BY_NAME[name] for name in ("nova", "moves", "unit"))


class TreeTestCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "tree")
        self.root.mkdir()
        self.file = pathlib.Path(folder.name, "state", "passed.json")
        self.git("init", "-q")
        self.write("nova_gpu/virt/driver.py", "1")
        self.write("nova_gpu/osc/show.py", "1")
        self.write("tests/moves/test_one.py", "1")
        self.write(".gitignore", "/.tools/\n")

    def git(self, *words: str) -> None:
        subprocess.run(("git", *words), cwd=self.root, check=True, capture_output=True)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def digest(self, suite: suites.Suite = MOVES) -> str:
        return unchanged.digests((suite, UNIT), self.root)[suite.name]


class DigestsTest(TreeTestCase):
    def test_what_counts(self) -> None:
        driver = self.root / "nova_gpu/virt/driver.py"
        changes = {
            "text": lambda: self.write("nova_gpu/virt/driver.py", "2"),
            "back, and may be run": lambda: (driver.write_text("1"), driver.chmod(0o755)),
            "new": lambda: self.write("nova_gpu/virt/other.py", ""),
            "new folder": lambda: self.write("nova_gpu/new/one.py", ""),
            "another name": lambda: driver.rename(driver.with_name("drive.py")),
            "link": lambda: driver.symlink_to("drive.py"),
            "gone": (self.root / "nova_gpu/new/one.py").unlink,
        }
        seen = [self.digest()]
        for name, change in changes.items():
            change()
            with self.subTest(name):
                self.assertNotIn(digest := self.digest(), seen)
                self.assertEqual(digest, self.digest())
                seen.append(digest)

    def test_git_need_not_have_it(self) -> None:
        """A commit changes no file."""
        before = self.digest()
        self.git("add", "--all")
        self.assertEqual(before, self.digest())
        (self.root / "nova_gpu/virt/driver.py").unlink()
        self.assertNotEqual(before, self.digest())

    def test_what_does_not(self) -> None:
        before = self.digest(), self.digest(NOVA)
        self.write("nova_gpu/osc/show.py", "2")
        self.write("doc/source/index.rst", "")
        self.write(".tools/passed.json", "")
        self.assertEqual(before, (self.digest(), self.digest(NOVA)))
        # It is nothing to one, and all of the other.
        self.write("tests/moves/test_one.py", "2")
        self.assertEqual(before[1], self.digest(NOVA))
        self.assertNotEqual(before[0], self.digest())

    def test_nothing_without_git(self) -> None:
        self.assertEqual({}, unchanged.digests((UNIT,), self.root))
        (self.root / ".git").rename(self.root / "other")
        with mock.patch.dict(os.environ, {"GIT_CEILING_DIRECTORIES": str(self.root.parent)}):
            self.assertEqual({}, unchanged.digests((MOVES,), self.root))


class PassesTest(TreeTestCase):
    GOOD = Outcome(passed=2)

    def keep(self, outcome: Outcome, before: str = "a", after: str = "a") -> bool:
        """Whether it is left out the next time, where its files are those of *before*"""
        result = Result(MOVES, outcome, 1.0)
        unchanged.keep((result,), {"moves": before}, {"moves": after}, self.file)
        return "moves" in unchanged.passes({"moves": before}, self.file)

    def test_who_passed(self) -> None:
        self.assertTrue(self.keep(self.GOOD))
        said = str(unchanged.passes({"moves": "a"}, self.file)["moves"])
        self.assertRegex(said, r"^passed here on these files \(\d{4}-.*\); --all runs it$")
        self.assertEqual({}, unchanged.passes({"moves": "b"}, self.file))
        self.assertEqual({}, unchanged.passes({}, self.file))

    def test_who_did_not(self) -> None:
        one = (Failure("x"),)
        for name, outcome in {
            "failed": Outcome(1, one),
            "skipped": Outcome(1, skips=(Skip("x", "no root"),)),
            "at the second try": Outcome(2, unsteady=one),
            "nothing": Outcome(),
        }.items():
            with self.subTest(name):
                self.assertTrue(self.keep(self.GOOD))
                self.assertFalse(self.keep(outcome))

    def test_changed_meanwhile(self) -> None:
        self.assertFalse(self.keep(self.GOOD, after="b"))
        unchanged.keep((Result(MOVES, self.GOOD, 1.0),), {}, {}, self.file)
        self.assertEqual({}, unchanged.passes({"moves": "a"}, self.file))

    def test_others_stay(self) -> None:
        self.keep(self.GOOD)
        unchanged.keep((Result(NOVA, self.GOOD, 1.0),), {"nova": "b"}, {"nova": "b"}, self.file)
        self.assertEqual(
            {"moves", "nova"}, {*unchanged.passes({"moves": "a", "nova": "b"}, self.file)}
        )

    def test_after_a_week(self) -> None:
        self.keep(self.GOOD)
        for shift, found in ((-6, True), (-8, False), (1, False)):
            at = time.time() + shift * 24 * 3600
            self.file.write_text(json.dumps({"moves": {"digest": "a", "at": at}}))
            self.assertEqual(found, bool(unchanged.passes({"moves": "a"}, self.file)), shift)

    def test_not_such_a_file(self) -> None:
        self.keep(self.GOOD)
        for text in ("", "[1]", '{"moves": 1}', '{"moves": {}}', '{"moves": {"digest": "a"}}'):
            self.file.write_text(text)
            self.assertEqual({}, unchanged.passes({"moves": "a"}, self.file), text)


class RunTest(unittest.TestCase):
    """What ``tools/test`` runs, and says of what it does not, with no suite that does anything"""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name, "passed.json")
        self.ran: list[str] = []
        self.same: dict[str, upstream.Same] = {}

        def run(selected: Iterable[suites.Suite], *ignored: object, **too: object) -> tuple:
            self.ran = [suite.name for suite in selected]
            return tuple(Result(suite, Outcome(1), 1.0) for suite in selected)

        passes, keep = unchanged.passes, unchanged.keep
        for where, name, new in (
            (command, "_prepare", lambda *ignored: None),
            (lanes, "run", run),
            (unchanged, "digests", lambda selected: dict.fromkeys(unchanged.APART, "x")),
            (lengths, "keep", lambda results: None),
            (upstream, "same", lambda selected: self.same),
            (unchanged, "passes", lambda found: passes(found, self.file)),
            (unchanged, "keep", lambda *given: keep(*given, self.file)),
        ):
            patch = mock.patch.object(where, name, new)
            patch.start()
            self.addCleanup(patch.stop)
        quiet = mock.patch.dict(os.environ)
        quiet.start()
        self.addCleanup(quiet.stop)
        os.environ.pop("CI", None)

    def run_command(self, *words: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.assertEqual(0, command.main(words))
        return printed.getvalue()

    def test_left_out(self) -> None:
        self.assertNotIn("LEFT OUT", self.run_command())
        everything = self.ran
        self.assertIn("moves", everything)
        said = self.run_command()
        left_out = re.findall(r"^LEFT OUT (\w+): passed here on these files", said, re.M)
        self.assertEqual({*unchanged.APART}, {*left_out})
        self.assertEqual([n for n in everything if n not in left_out], self.ran)
        self.assertEqual(f"{len(self.ran)} passed, 0 failed, 0 skipped", said.splitlines()[-1])

    def test_runs_all_the_same(self) -> None:
        self.run_command()
        self.same = {"moves": upstream.Same("moves", "b0bd73e")}
        for words in (("moves",), ("--all",), ("--no-skip",), ("-k", "x")):
            with self.subTest(words):
                self.assertNotIn("LEFT OUT", self.run_command(*words))
                self.assertIn("moves", self.ran)
        for name in ("run", "suites"):
            self.assertIn("\nexport CI=true\n", (ROOT / ".ci" / name).read_text())
        os.environ["CI"] = "true"
        self.run_command()
        self.assertIn("moves", self.ran)

    def test_of_which_nothing_is_changed(self) -> None:
        self.same = {"moves": upstream.Same("moves", "b0bd73e")}
        said = self.run_command()
        self.assertNotIn("moves", self.ran)
        # shapes, bars and gpu are the others
        self.assertEqual(len(suites.SUITES) - 4, len(self.ran))
        self.assertIn(f"\nLEFT OUT moves: {self.same['moves']}\n", said)

    def test_a_part_of_it_is_no_pass(self) -> None:
        self.run_command("-k", "x")
        self.assertNotIn("LEFT OUT", self.run_command())


def _file(module: str) -> pathlib.Path | None:
    path = ROOT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in files if each.is_file()), None)


@functools.cache
def _within(name: str) -> frozenset[str]:
    """Of ``tests.vfio.base.VFIOTestCase`` the modules that are imported for it"""
    if not name.startswith(("nova_gpu", "tests", "tools")):
        return frozenset()
    words = name.split(".")
    found = (".".join(words[:number]) for number in range(1, len(words) + 1))
    return frozenset(each for each in found if _file(each))


@functools.cache
def _nodes(module: str) -> tuple[ast.AST, ...]:
    path = _file(module)
    assert path
    return tuple(ast.walk(ast.parse(path.read_text(), str(path))))


@functools.cache
def _texts(module: str) -> frozenset[str]:
    found = (each.value for each in _nodes(module) if isinstance(each, ast.Constant))
    return frozenset(each for each in found if isinstance(each, str))


@functools.cache
def _needed(module: str) -> frozenset[str]:
    """What it imports, and what in a text of it is the name of a module or of what one has"""
    found = {each for text in _texts(module) for each in _DOTTED.findall(text)}
    for node in _nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(each for name in found for each in _within(name.replace(":", ".")))


def _reached(roots: Iterable[str]) -> set[str]:
    left, found = {each for name in roots for each in _within(name)}, set[str]()
    while left:
        found.add(name := left.pop())
        left |= _needed(name) - found
    return found


class ApartTest(unittest.TestCase):
    """The files a suite reads are none of those that it is said not to read."""

    # Of each what it is begun with
    OWN = {  # noqa: RUF012
        "nova": ("tools/novatests",),
        "lxc": ("tests/lxc",),
        "crash": ("tests/crash",),
        "guide": ("tools/novalab",),
        "vfio": ("tests/vfio", "tests/vgpu", "tools/vfiolab"),
        "moves": ("tests/moves", "tests/vfio/[!t]*", "tools/vfiolab"),
    }
    # What is named there for the long run in its place, and for another suite
    OTHERS = {  # noqa: RUF012
        "crash": {"tools/crashtest", "tests.functional.test_concurrency"},
        "vfio": {"tests/bars", "tests/shapes"},
        "moves": {"tests/bars", "tests/vgpu", "tests/shapes"},
    }

    def own(self, suite: str) -> list[str]:
        paths = [path for pattern in self.OWN[suite] for path in ROOT.glob(pattern)]
        files = [each for path in paths for each in ([path] if path.is_file() else path.rglob("*"))]
        modules = (file.relative_to(ROOT).with_suffix("") for file in files if file.suffix == ".py")
        return [".".join(each.parts).removesuffix(".__init__") for each in modules]

    def test_imports(self) -> None:
        metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
        loaded = [
            name
            for group, points in metadata["project"]["entry-points"].items()
            if group.startswith("nova.")
            for name in points.values()
        ]
        self.assertTrue(loaded)
        for suite in unchanged.APART:
            found = _reached([*self.own(suite), *loaded, "nova_gpu.virt.driver"])
            found -= self.OTHERS.get(suite, set())
            self.assertGreater(len(found), 100)
            files = {str(file.relative_to(ROOT)) for each in found if (file := _file(each))}
            with self.subTest(suite):
                self.assertEqual(set(), {each for each in files if unchanged.is_apart(suite, each)})

    def test_files_that_are_named(self) -> None:
        for suite in unchanged.APART:
            texts = {text for module in self.own(suite) for text in _texts(module)}
            paths = {each for each in texts if re.fullmatch(r"\w[\w.-]*(/[\w.-]+)+", each)}
            found = {each for each in paths if (ROOT / each).exists()}
            found -= self.OTHERS.get(suite, set())
            with self.subTest(suite):
                self.assertEqual(set(), {each for each in found if unchanged.is_apart(suite, each)})

    def test_each_is_there(self) -> None:
        for suite, patterns in unchanged.APART.items():
            self.assertIn(suite, suites.BY_NAME)
            for pattern in patterns:
                self.assertTrue([*ROOT.glob(pattern)], pattern)
        for suite, names in unchanged.READ.items():
            for name in names:
                self.assertTrue((ROOT / name).exists(), name)
                self.assertFalse(unchanged.is_apart(suite, name), name)
                self.assertTrue(unchanged.is_apart("nova", name), name)

    def test_pages(self) -> None:
        """Those that are tried; that others show is found by who names them."""
        self.assertLess(
            {str(page.relative_to(ROOT)) for page in guide.PAGES}, {*unchanged.READ["guide"]}
        )

    def test_contributing_has_which(self) -> None:
        text = (environment.ROOT / "CONTRIBUTING.rst").read_text()
        said = re.search(r"leaves one of (.*?)\sout when", text, re.DOTALL)
        assert said
        self.assertEqual([*unchanged.APART], re.findall(r"``(\w+)``", said[1]))

    def test_who_runs_where_it_is_changed_alone(self) -> None:
        for suite in suites.SUITES:
            self.assertLessEqual(suite.changed_only, suite.name in unchanged.APART, suite.name)
