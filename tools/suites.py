# SPDX-License-Identifier: Apache-2.0
"""Implementation of ``tools/test``: runs suites of tests side by side, and prints a table.

This module runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import argparse
import configparser
import dataclasses
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent import futures

from lab import packages
from tools import environments, figures, outcomes
from tools.environments import LOG, NEWEST, RELEASES, ROOT, STATE
from tools.outcomes import Outcome
from tools.progress import Progress

_KEPT = STATE / "figures.json"
# A part of the long tier may take 80 minutes.
_LIMIT_S, _LONG_LIMIT_S, _AGAIN_LIMIT_S = 3900, 4800, 900


@dataclasses.dataclass(frozen=True)
class Suite:
    """The commands that run a suite. A command whose output names no tests counts as one test.

    ``lane``: suites with the same one run one after another, because they use the same libvirtd or
    VM; empty for none. ``pick``: the option before the name of a test to run, empty for none,
    ``None`` if tests cannot be picked.

    ``short`` and ``long`` are the arguments with which the tiers run the last command: empty for
    all of its tests, ``None`` if a tier has none of them. ``on_request`` says why neither has any.
    """

    commands: tuple[str, ...]
    lane: str = ""
    pick: str | None = None
    short: str | None = None
    long: str | None = None
    on_request: str = ""


def _tox(environment: str) -> tuple[str, ...]:
    """Return the commands of an environment in tox.ini."""
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(ROOT / "tox.ini")
    return tuple(ini[f"testenv:{environment}"]["commands"].strip().splitlines())


def _these(*patterns: str) -> str:
    """Return the arguments that pick the tests with one of *patterns* in their names."""
    return shlex.join(word for pattern in patterns for word in ("-k", pattern))


# Each suite and release has a repository, because two runs at once would lock each other. The tests
# of a class run in one process. Suites that wait for their guests come first.
_STESTR = (
    "nice -n 5 stestr --test-path tests/{folder} --top-dir . --group_regex '([^\\.]+\\.)+' "
    "--repo-url .tools/stestr/{suite}-{release} run"
)
_GUIDE = ("sh -c 'test $(id -u) = 0 && exec tools/lab guide; echo SKIP: needs root; exit 77'",)
_VFIO = "python -m tests.vfio --tests tests/{suite}"


def _stestr(folder: str, inputs: int = 0) -> str:
    """Return the command that runs the tests of a folder side by side.

    :param inputs: of each property, for as long as they take; by default a few
    """
    variables = f"env NOVA_GPU_FUZZ_EXAMPLES={inputs} OS_TEST_TIMEOUT=0 " if inputs else ""
    return variables + _STESTR.replace("{folder}", folder)


# What the short tier leaves out of the functional suite: the classes that cost most for what only
# they find, by test and by module. The long tier has them, each night.
_COSTLY = (
    r"test_(adopt|adopt_vgpus|leave|takeover_crashes|stock_clouds|tonight|killed|concurrency)[.]"
    r"|test_(preemption|cross_cell|recoveries|vgpu_operations|install|room|counted|fabric)[.]"
    r"|test_(aggregates|both_hypervisors|capacity)[.]"
    r"|test_live_migration[.](OtherType|Plain|Recoveries)Test|test_pinned[.]\w+StoryTest"
    r"|test_kvm_binding[.](Moves|Cast)Test|test_virtual_functions[.](SeveralSizes|GPUInstances)Test"
)

# The longest lanes first, so that none runs on alone. CONTRIBUTING.rst says what each suite is, and
# doc/source/contributor/testing.rst how to add one: a line here, and its name in tools/tiers.py.
SUITES = {
    "lxc": Suite(
        ("python -m tests.lxc",),
        "libvirtd",
        "-k",
        # A guest with whole cards, one by CDI files and one with MIG instances
        short=_these("FlavorTest.test_blueprint", "FlavorTest.test_root", "CDITest", "MIGTest"),
        long="",
    ),
    "crash": Suite(
        ("python -m tests.crash --seed {seed}",), "libvirtd", short="--points 12", long=""
    ),
    "guide": Suite(_GUIDE, "libvirtd", long=""),
    "functional": Suite(
        (_stestr("functional"),),
        pick="",
        short=f"--exclude-regex {shlex.quote(_COSTLY)}",
        long=shlex.quote(_COSTLY),
    ),
    "vfio": Suite(
        ("python -m tests.vfio",),
        "vm",
        "-k",
        # One guest of each way of delivery: a whole card, mediated devices, functions, functions
        # with a type
        short=_these(
            *("test_both_functions_and_back", "test_two_in_one_guest", "test_both_in_one"),
            *("test_a_type_comes_and_goes", "test_what_libvirt_makes"),
        ),
        long="",
    ),
    "moves": Suite((_VFIO,), "vm", "-k", long=""),
    "bars": Suite((_VFIO,), "vm", "-k", long=""),
    "numa": Suite((_VFIO,), "vm", "-k", long=""),
    "takeover": Suite((f"{_VFIO} --limit-s 4500",), "vm", "-k", long=""),
    "unit": Suite((_stestr("unit"),), pick="", short=""),
    "matrix": Suite(
        (
            "python -m tests.matrix --jobs 1 --seconds 120 --seed {seed} "
            "--with-tenants --seeds 1 --steps 8",
        ),
        short="",
    ),
    "matrix-pairs": Suite(("python -m tests.matrix --pairs",), pick="-k", long=""),
    "matrix-calls": Suite(
        ("python -m tests.matrix --calls --seconds 4200 --seed {seed}",), pick="-k", long=""
    ),
    "matrix-triples": Suite(
        ("python -m tests.matrix --triples --seconds 4200 --seed {seed}",), pick="-k", long=""
    ),
    "tenants": Suite(("python -m tests.matrix tenants --seed {seed}",), long=""),
    "nova": Suite(("nice -n 5 python -m tests.nova unit",), pick="-k", long=""),
    "nova-functional": Suite(("python -m tests.nova functional",), pick="-k", long=""),
    "extensions": Suite(_tox("extensions"), long=""),
    "takeovers": Suite(("python -m tests.crash --takeovers 1000 --seed {seed}",), long=""),
    # A cloud costs 14 s of a processor; two runs are of other clouds. Twelve are in the functional
    # suite each night: their three minutes are too many for the short tier.
    "clouds": Suite(
        (
            "env NOVA_GPU_CLOUDS=150 NOVA_GPU_SEED={seed} OS_TEST_TIMEOUT=0 "
            + _stestr("functional").replace("--group_regex '([^\\.]+\\.)+' ", ""),
        ),
        pick="",
        long="test_stock_clouds",
    ),
    "releases": Suite(("python -m tests.releases HEAD~100",), long=""),
    "operations": Suite(("python -m tests.crash --operations 10000 --seed {seed}",), long=""),
    # 5,000 inputs of each property in two runs, as each run tries others
    "fuzz": Suite(
        (_stestr("unit", inputs=2500),),
        pick="",
        long="'unit[.]fuzz|test_partitions_fuzz|test_preemption_c'",
    ),
    "histories": Suite((_stestr("unit", inputs=3000),), pick="", long="what_was_not_cleaned"),
    "fields": Suite(
        (_stestr("unit", inputs=10_000),), pick="", long="'CommandsTest.test_of_a_|FillingsTest'"
    ),
    "faults": Suite(("python -m tests.faults",), long=""),
    "style": Suite((*_tox("pep8"), *_tox("docs")), short=""),
    "types": Suite(_tox("types"), short=""),
    "gpu": Suite(
        ("python -m tests.gpu",), pick="-k", on_request="needs a machine with a real NVIDIA card"
    ),
}
# Suites that run with any release of Nova
_OF_ANY_NOVA = ("functional", "operations")


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a suite: ``arguments`` of the last command, and the tests that are picked.

    ``tier`` is "short" or "long", empty for all of the suite.
    """

    suite: str
    nova: int = NEWEST
    tier: str = ""
    tests: tuple[str, ...] = ()
    seed: int = 0

    @property
    def figure(self) -> str:
        """The name under which the run's cost is kept."""
        release = "" if self.nova == NEWEST else f"-{RELEASES[self.nova]}"
        suite = SUITES[self.suite]
        is_part = self.tier and suite.short is not None and suite.long is not None
        picked = f":{'|'.join(self.tests)}" if self.tests and suite.pick is not None else ""
        return f"{self.suite}{release}{f':{self.tier}' if is_part else ''}{picked}"

    def commands(self) -> list[list[str]]:
        """Return the words of each command."""
        suite = SUITES[self.suite]
        words = {"suite": self.suite, "release": RELEASES[self.nova], "seed": str(self.seed)}
        argvs = [shlex.split(command.format_map(words)) for command in suite.commands]
        if self.tests and suite.pick is not None:
            # stestr takes one pattern.
            picked = self.tests if suite.pick else ["|".join(self.tests)]
            argvs[-1] += [word for text in picked for word in (suite.pick, text) if word]
        elif self.tier:
            argvs[-1] += shlex.split(getattr(suite, self.tier) or "")
        return argvs


def run(wanted: Run, progress: Progress, expected: int = 0, *, limit_s: int = 0) -> Outcome:
    """Run a suite, and return the result.

    :param expected: the number of its tests, 0 if it is not known
    :param limit_s: the seconds after which a command is ended, 0 for those of its tier
    """
    limit_s = limit_s or (_LONG_LIMIT_S if wanted.tier == "long" else _LIMIT_S)
    name, total, began = wanted.suite, Outcome(wanted.suite), time.monotonic()
    release = RELEASES[wanted.nova]
    (STATE / "stestr" / f"{name}-{release}").mkdir(parents=True, exist_ok=True)
    commands = wanted.commands()
    is_complete = True
    for number, argv in enumerate(commands):
        log = LOG / f"{name}{number or ''}-{release}{'-again' * (limit_s == _AGAIN_LIMIT_S)}.log"
        log.write_bytes(b"")  # nothing of a run before is counted
        progress.begins(name, log)
        ended = outcomes.execute(
            argv, log, limit_s, cwd=ROOT, env=environments.variables(wanted.nova)
        )
        label = f"{name}: {' '.join(argv[:3])}" if commands[1:] else name
        done = outcomes.read(log.read_text(errors="replace").splitlines(), ended.returncode, label)
        done.processor_s = ended.processor_s
        is_complete &= ended.returncode in (0, outcomes.SKIPPED)
        total.add(done)
        for test, reason in done.failed.items():
            _say(f"{name}: FAILED {test}\n{reason[-6000:]}\n   all of it: {log}")
    if not is_complete:
        total.not_run = max(0, expected - total.tests)
    total.seconds = time.monotonic() - began
    progress.ends(name)
    _say(f"{name}: {total} ({total.seconds:.0f} s)")
    return total


def together(names: Sequence[str], one: Callable[[str], Outcome]) -> list[Outcome]:
    """Run suites of different lanes at the same time, and return the results in order of *names*.

    One lane more than there are processors runs at a time, because suites often wait.
    """
    lanes: dict[str, list[str]] = {}
    for name in names:
        lanes.setdefault(SUITES[name].lane or name, []).append(name)
    with futures.ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        done = pool.map(lambda lane: [*map(one, lane)], lanes.values())
        return sorted(itertools.chain(*done), key=lambda outcome: names.index(outcome.suite))


def again(first: Outcome, one: Callable[[str, Sequence[str]], Outcome]) -> None:
    """Run the failed tests of a suite again while nothing else runs, and update its result.

    A test that passes then counts as unsteady: it may fail on a busy machine. If more than five
    failed, none is run again, because they probably have a common cause.
    """
    is_late = any("time limit" in test for test in first.failed)
    would_fail_again = first.suite in ("style", "types", "extensions")
    if is_late or would_fail_again or not 0 < len(first.failed) <= 5:
        return
    names = [test.partition("(")[0] for test in first.failed]
    whole = SUITES[first.suite].pick is None or not all(n.startswith("tests.") for n in names)
    second = one(first.suite, () if whole else names)
    first.seconds += second.seconds
    first.processor_s += second.processor_s
    if second.passed and not second.failed and not second.skipped:
        first.passed = second.passed + (0 if whole else first.passed)
        first.unsteady, first.failed = first.failed, {}


def refuse_skips(outcome: Outcome) -> None:
    """Count skipped tests as failed unless tests/allowed-skips.txt lists their reason."""
    lines = (ROOT / "tests/allowed-skips.txt").read_text().splitlines()
    allowed = [line.partition(" -- ")[0] for line in lines if line and not line.startswith("#")]
    for test, reason in list(outcome.skipped.items()):
        if not any(part in reason for part in allowed):
            outcome.failed[f"{test} skipped, not in tests/allowed-skips.txt: {reason}"] = ""
            del outcome.skipped[test]


def _say(text: str) -> None:
    print(f"   {text}", flush=True)


def selected(options: argparse.Namespace) -> list[Run]:
    """Return the runs that the command line asks for, in the order of ``SUITES``.

    :raises ValueError: with what is wrong with it
    """
    of_release = [name for name in SUITES if options.nova == NEWEST or name in _OF_ANY_NOVA]
    if wrong := set(options.suites) - set(of_release):
        raise ValueError(
            f"no suite with Nova {options.nova} is called {', '.join(sorted(wrong))}; there are: "
            f"{', '.join(of_release)}"
        )
    tiers = [tier for tier in ("short", "long") if getattr(options, tier)]
    if not (tiers or options.suites):
        tiers = ["short"]
    runs = []
    for name in of_release:
        has = [tier for tier in ("short", "long") if getattr(SUITES[name], tier) is not None]
        wanted = has if name in options.suites else [tier for tier in has if tier in tiers]
        if wanted or name in options.suites:
            # Both tiers together are the whole suite.
            tier = wanted[0] if len(wanted) == 1 else ""
            runs.append(Run(name, options.nova, tier, tuple(options.patterns), options.seed))
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/test",
        description="Install what the suites need below .tools/ and run them side by side; as root "
        "where Debian packages are missing. Without a name, the short tier: of each suite the "
        "tests that a change needs. CONTRIBUTING.rst says what each suite is. With CI=true in the "
        "environment failed tests run once more after all suites, and a skip whose reason "
        "tests/allowed-skips.txt lacks counts as failed.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"whole: {', '.join(SUITES)}")
    parser.add_argument(
        "--short", action="store_true", help="the short tier as well as the suites named"
    )
    parser.add_argument("--long", action="store_true", help="all that the short tier leaves out")
    parser.add_argument("--nova", type=int, choices=sorted(RELEASES), default=NEWEST)
    parser.add_argument("--seed", type=int, default=0, help="of the suites that draw by chance")
    text = "run only the tests whose name contains this text, or that of another -k"
    parser.add_argument("-k", dest="patterns", action="append", default=[], help=text)
    parser.add_argument(
        "--no-install", action="store_true", help="use the environment as it is installed"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Install what the suites need, and run them.

    :returns: the exit status: 0 if no test failed, 1 if one did, 2 if the suites cannot run
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        runs = selected(options)
    except ValueError as error:
        parser.error(str(error))
    for ending in (signal.SIGINT, signal.SIGTERM):
        # At once: the commands end with this process, and the pool would wait for them.
        signal.signal(ending, lambda number, _: os._exit(128 + number))
    LOG.mkdir(parents=True, exist_ok=True)
    names = " ".join(run.suite for run in runs)
    _say(f"Nova {options.nova} ({RELEASES[options.nova]}): {names}; logs in {LOG}")
    _say(f"seed {options.seed}")
    former = figures.kept(_KEPT)
    known = {**figures.measured(), **former}
    by_suite = {run.suite: known[run.figure] for run in runs if run.figure in known}
    began = time.monotonic()
    with Progress([run.suite for run in runs], by_suite) as progress:
        progress.prepares("installs what the suites need")
        try:
            if not options.no_install:
                environments.install(options.nova)
            elif not environments.path(options.nova).exists():
                parser.error(
                    f"{environments.path(options.nova)} does not exist: run without --no-install"
                )
        except (packages.MachineNotReady, subprocess.CalledProcessError) as error:
            print(f"tools/test: {error}; see {LOG}", file=sys.stderr)
            return 2
        progress.prepares("")
        install = Outcome("(install)", seconds=time.monotonic() - began)
        install.processor_s = sum(os.times()[2:4])
        results = _run_all(runs, progress, by_suite)
    rows = [install.row(), *(outcome.row() for outcome in results)]
    total = Outcome(outcomes.ALL, seconds=time.monotonic() - began)
    for outcome in (install, *results):
        total.add(outcome)
    print(f"\n{outcomes.table([*rows, total.row()])}")
    by_figure = [
        dataclasses.replace(outcome.row(), name=run.figure)
        for run, outcome in zip(runs, results, strict=True)
    ]
    lines = figures.grown(former, by_figure)
    figures.keep(_KEPT, by_figure)
    lines += outcomes.closing_lines(total)
    print("\n".join([*lines, str(total)]), flush=True)
    return 1 if total.failed else 0


def _run_all(runs: Sequence[Run], progress: Progress, expected: figures.Figures) -> list[Outcome]:
    """Run the suites, and in CI those of their failed tests again that may pass alone."""
    by_name = {run.suite: run for run in runs}
    count = {name: figure.tests for name, figure in expected.items()}
    results = together([*by_name], lambda name: run(by_name[name], progress, count.get(name, 0)))
    for outcome in results if os.environ.get("CI") == "true" else ():
        again(
            outcome,
            lambda name, tests: run(
                dataclasses.replace(by_name[name], tests=tuple(tests) or by_name[name].tests),
                progress,
                limit_s=_AGAIN_LIMIT_S,
            ),
        )
        refuse_skips(outcome)
    return results


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
