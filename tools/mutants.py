# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.mutants``: changes the code at random, and looks which tests notice.

Each mutant is one change of nova_gpu or osc_gpu by an operator of cosmic-ray, such as ``<`` to
``<=`` or ``and`` to ``or``, at a place that is drawn from all modules in proportion to their
statements. The same seed and the same code give the same mutants. The unit test modules that reach
the changed line run first, those that reach little else before others; then the functional ones
that are about the same. At the first test that fails the mutant is killed. It ends after five
minutes of the processor.

Which unit test module reaches which line is measured once for each state of the code and its tests
(``tools.reached``), and kept in .tools/mutants. Functional test modules are chosen by the words
that their names and their text share with the mutant's module: measuring them takes an hour.

With --against REF the deletion of tests is weighed: the tests that REF has and that have changed
since run on each mutant first. If one of them kills it, today's tests have to. A mutant that no
changed test kills at REF cannot have become a survivor by the change, and takes no more time.

It runs with what tools/mutants.txt names; the tests run in the environment of the suites.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import functools
import hashlib
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path

import coverage
from cosmic_ray import mutating, plugins
from cosmic_ray.ast import ast_nodes, get_ast

from tools import copies, environments

ROOT, STATE = environments.ROOT, environments.STATE / "mutants"
PACKAGES = ("nova_gpu", "osc_gpu", "extensions/*/*_gpu_*")
# The suites of unit tests that run code of the packages
_NOT_THEIRS = ("lab", "tools", "cloud", "fixtures", "crash", "benchmarks")
# Bounds of one mutant: seconds of the processor, and test modules
PROCESSOR_S, UNIT, FUNCTIONAL, AT_FIRST = 300.0, 30, 4, 6
_OF_EVERY_PATH = frozenset({"nova", "virt", "core", "host"})
AT_ONCE = 2
# Operators that replace a name by a random number, or need arguments, say little of a test.
_LEFT_OUT = ("VariableReplacer", "VariableInserter", "RemoveDecorator")


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one place. ``file`` is relative to the root of the tree."""

    file: str
    line: int
    operator: str
    occurrence: int

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line} {self.operator} {self.occurrence}"

    def code(self, root: Path) -> str | None:
        """Return the changed text of the file, ``None`` if the operator has no such place there."""
        text = (root / self.file).read_text()
        operator = plugins.get_operator(f"core/{self.operator}")()
        changed: str | None = mutating.mutate_code(text, operator, self.occurrence)
        return changed

    def is_sound(self, root: Path) -> bool:
        """Return whether the change is Python, and another program."""
        try:
            changed = ast.parse(self.code(root) or "")
        except (SyntaxError, AttributeError):  # cosmic-ray 8.4 fails at ``except module.Error``
            return False
        return ast.dump(changed) != ast.dump(ast.parse((root / self.file).read_text()))

    def change(self, root: Path) -> str:
        """Return the changed lines, as ``old -> new``."""
        old, new = ((root / self.file).read_text(), self.code(root) or "")
        pairs = zip(old.splitlines(), new.splitlines(), strict=False)
        return "; ".join(f"{a.strip()} -> {b.strip()}" for a, b in pairs if a != b)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant: ``unit``, ``functional``, ``survived`` or ``timeout``.

    ``killer`` is the test that failed first.
    """

    mutant: Mutant
    kind: str
    killer: str = ""


# Mutants


def draw(root: Path, number: int, seed: int, pattern: str = "") -> list[Mutant]:
    """Return *number* mutants, drawn from the modules in proportion to their statements."""
    chance = random.Random(seed)
    files = sorted(
        str(path.relative_to(root))
        for package in PACKAGES
        for path in root.glob(f"{package}/**/*.py")
    )
    weights = [_statements(root / file) for file in files]
    drawn: dict[str, Mutant] = {}
    while len(drawn) < number:
        (file,) = chance.choices(files, weights)
        places = _places(root, file)
        if not places or pattern not in file:
            continue
        place = chance.choice(sorted(places))
        mutant = Mutant(file, place[0], *chance.choice(places[place]))
        if mutant.is_sound(root):
            drawn.setdefault(f"{file}:{place}", mutant)
    return list(drawn.values())


def _statements(path: Path) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text())))


@functools.cache
def _places(root: Path, file: str) -> Mapping[tuple[int, int], list[tuple[str, int]]]:
    """Return the operators that can change each place of a module, each with its occurrence there.

    Annotations are left out, because nothing evaluates them.
    """
    text = (root / file).read_text()
    places: dict[tuple[int, int], list[tuple[str, int]]] = collections.defaultdict(list)
    unread, tree = list(_annotations(ast.parse(text))), get_ast(text)
    for name in sorted(plugins.operator_names()):
        word = name.removeprefix("core/")
        if word in _LEFT_OUT:
            continue
        operator = plugins.get_operator(name)()
        positions = (
            start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)
        )
        for occurrence, place in enumerate(positions):
            if not any(begin <= place < end for begin, end in unread):
                places[place].append((word, occurrence))
    return places


def _annotations(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the begin and the end of each annotation."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if isinstance(at := getattr(node, field, None), ast.expr):
                yield (at.lineno, at.col_offset), (at.end_lineno or 0, at.end_col_offset or 0)


# Tests that reach a line


class Reach:
    """The unit test modules that reach each line of the code, and functional ones by words."""

    def __init__(self, root: Path) -> None:
        self._root = root
        folder = STATE / _digest(root)
        if not (folder / "bad.json").exists():
            _measure(root, folder)
        data = coverage.CoverageData(str(folder / "unit"))
        data.read()
        bad = set(json.loads((folder / "bad.json").read_text()))
        self._by_file = {
            file: {
                line: {name for name in names if name and name not in bad}
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        # By test module, the number of lines that it reaches in all
        self._size = collections.Counter(
            name for lines in self._by_file.values() for names in lines.values() for name in names
        )

    def unit(self, mutant: Mutant) -> list[str]:
        """Return the unit test modules that reach the mutant, the most specific ones first."""
        lines = self._by_file.get(mutant.file, {})
        own = collections.Counter(name for names in lines.values() for name in names)
        # What runs at an import runs for the first test module alone, and concerns them all.
        imported = _at_import(self._root / mutant.file)
        reached = own if mutant.line in imported else lines.get(mutant.line, set())
        stem = f"test_{Path(mutant.file).stem}"
        return sorted(
            reached,
            key=lambda name: (stem not in name, -own[name] / self._size[name], name),
        )

    def functional(self, mutant: Mutant) -> list[str]:
        """Return the functional test modules that share most words with the mutant's module.

        It takes no measuring, and misses what a module of another noun would notice.
        """
        own = set(re.findall(r"[a-z]{4,}", mutant.file)) - _OF_EVERY_PATH
        stem, scores = Path(mutant.file).stem, {}
        for name, path in _test_modules(self._root, "tests/functional").items():
            named = sum(word.rstrip("s") in name for word in own)
            score = sum(min(_words(path)[word], 5) for word in own) + 10 * named
            if score:
                scores[name] = score + 50 * (path.stem == f"test_{stem}")
        return sorted(scores, key=lambda name: -scores[name])[:FUNCTIONAL]


def _at_import(path: Path) -> frozenset[int]:
    """Return the lines of a module that are outside of all functions."""
    text = path.read_text()
    inside = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    }
    return frozenset(range(1, text.count("\n") + 2)) - inside


def _digest(root: Path) -> str:
    """Return a name for the state of the packages and the unit tests at *root*."""
    digest = hashlib.sha256()
    for folder in (*PACKAGES, "tests/unit", "extensions/*/tests/unit"):
        for path in sorted(root.glob(f"{folder}/**/*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _test_modules(root: Path, folder: str) -> dict[str, Path]:
    """Return the paths of the test modules in *folder*, extensions' included, by name."""
    return {
        ".".join(path.relative_to(above).with_suffix("").parts): path
        for above in (root, *root.glob("extensions/*"))
        for path in sorted((above / folder).rglob("test_*.py"))
    }


def _measure(root: Path, folder: Path) -> None:
    """Run each unit test module of the tree at *root* once, and keep which lines it reaches."""
    modules = sorted(
        name for name in _test_modules(root, "tests/unit") if name.split(".")[2] not in _NOT_THEIRS
    )
    print(f"measuring which lines {len(modules)} unit test modules reach", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    shares = [modules[share::AT_ONCE] for share in range(AT_ONCE)]
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        outputs = pool.map(
            lambda pair: _reach(root, folder / f"unit.{pair[0]}", pair[1]), enumerate(shares)
        )
    bad = [
        line.split()[1].rstrip(":")
        for text in outputs
        for line in text.splitlines()
        if not line.endswith(" 0 failed")
    ]
    combined = coverage.CoverageData(str(folder / "unit"))
    for share in range(AT_ONCE):
        part = coverage.CoverageData(str(folder / f"unit.{share}"))
        part.read()
        combined.update(part)
    combined.write()
    (folder / "bad.json").write_text(json.dumps(bad))


def _reach(root: Path, output: Path, modules: Sequence[str]) -> str:
    python = environments.path(environments.NEWEST) / "bin/python"
    variables = {**environments.variables(environments.NEWEST), "PYTHONPATH": str(root)}
    argv = [str(python), "-W", "ignore", "-m", "tools.reached", str(output), *modules]
    return subprocess.run(
        argv, cwd=root, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


@functools.cache
def _words(path: Path) -> collections.Counter[str]:
    return collections.Counter(re.findall(r"[a-z]{4,}", path.read_text().lower()))


# Runs


def judge(root: Path, mutant: Mutant, unit: Sequence[str], others: Sequence[str]) -> Outcome:
    """Run test modules on a mutant of the tree at *root* until one fails."""
    code, left = mutant.code(root), PROCESSOR_S
    assert code is not None
    with copies.of_tree(root, "mutant") as folder:
        copies.replace(folder / mutant.file, code)
        parts = [("unit", unit[:AT_FIRST]), ("unit", unit[AT_FIRST:UNIT])]
        parts += [("functional", [name]) for name in others]
        for kind, modules in parts:
            if not modules:
                continue
            run = copies.run_tests(folder, modules, first=True, processor_s=int(left))
            left -= run.processor_s
            if run.status is None or left < 1:
                return Outcome(mutant, "timeout", modules[0])
            if run.status != 0:
                return Outcome(mutant, kind, next(iter(run.failed), modules[0]))
    return Outcome(mutant, "survived")


def _say(outcome: Outcome, root: Path, count: str) -> None:
    killer = f" by {outcome.killer}" if outcome.killer else ""
    change = outcome.mutant.change(root)
    print(f"{count} {outcome.kind}{killer}: {outcome.mutant.name}: {change}", flush=True)


def evaluate(mutants: Sequence[Mutant]) -> list[Outcome]:
    """Run today's tests on all mutants."""
    reach = Reach(ROOT)

    def one(mutant: Mutant) -> Outcome:
        outcome = judge(ROOT, mutant, reach.unit(mutant), reach.functional(mutant))
        done.append(mutant)
        _say(outcome, ROOT, f"{len(done)}/{len(mutants)}")
        return outcome

    done: list[Mutant] = []
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, mutants))


def compare(mutants: Sequence[Mutant], ref: str) -> tuple[list[Outcome], list[Outcome]]:
    """Return the kills at *ref* by tests that have changed since, and those that are lost now."""
    changed = _changed(ref)
    with copies.of_commit(ROOT, ref) as before:
        reach, now = Reach(before), Reach(ROOT)

        def one(mutant: Mutant) -> tuple[Outcome | None, Outcome | None]:
            done.append(mutant)
            if (before / mutant.file).read_text() != (ROOT / mutant.file).read_text():
                print(f"left out, its module has changed: {mutant.name}", flush=True)
                return None, None
            unit = [name for name in reach.unit(mutant)[:UNIT] if name in changed]
            others = [name for name in reach.functional(mutant) if name in changed]
            former = judge(before, mutant, unit, others) if unit or others else None
            if former is None or not former.kind.endswith(("unit", "functional")):
                return None, None
            outcome = judge(ROOT, mutant, now.unit(mutant), now.functional(mutant))
            _say(former, ROOT, f"{len(done)}/{len(mutants)} at {ref}")
            _say(outcome, ROOT, f"{len(done)}/{len(mutants)} now")
            return former, outcome if outcome.kind in ("survived", "timeout") else None

        done: list[Mutant] = []
        with futures.ThreadPoolExecutor(AT_ONCE) as pool:
            pairs = list(pool.map(one, mutants))
    formers = [former for former, _ in pairs if former]
    return formers, [former for former, lost in pairs if former and lost]


def _changed(ref: str) -> Collection[str]:
    """Return the test modules of *ref* that are gone or another by now."""
    argv = ["git", "diff", "--name-only", "--no-renames", "--diff-filter=MD", ref, "--", "tests"]
    names = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {".".join(Path(name).with_suffix("").parts) for name in names.split()}


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a kill was lost, else 0: that mutants survive is no failure."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=100, help="mutants (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("-k", dest="pattern", default="", help="only modules whose path has this")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    parser.add_argument("--against", metavar="REF", help="name the kills that were lost since")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    print(f"{options.count} mutants of seed {options.seed}", flush=True)
    mutants = draw(ROOT, options.count, options.seed, options.pattern)
    if options.list:
        print("\n".join(f"{mutant.name}: {mutant.change(ROOT)}" for mutant in mutants))
        return 0
    if options.against:
        formers, lost = compare(mutants, options.against)
        print(f"\n{len(formers)} killed at {options.against} by tests that have changed since")
        for outcome in lost:
            print(f"LOST {outcome.mutant.name}: {outcome.mutant.change(ROOT)}: {outcome.killer}")
        print(f"{len(lost)} kills lost (seed {options.seed}, {time.monotonic() - began:.0f} s)")
        return 1 if lost else 0
    outcomes = evaluate(mutants)
    kinds = collections.Counter(outcome.kind for outcome in outcomes)
    print(f"\n{'':14}{'mutants':>8}")
    for kind in ("unit", "functional", "survived", "timeout"):
        print(f"{kind:14}{kinds[kind]:8}")
    for outcome in outcomes:
        if outcome.kind not in ("unit", "functional"):
            print(f"{outcome.kind.upper()} {outcome.mutant.name}: {outcome.mutant.change(ROOT)}")
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
