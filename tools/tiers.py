# SPDX-License-Identifier: Apache-2.0
"""Implementation of ``.ci/run`` and ``.ci/long``: the parts of the two tiers, in bare roots.

Every part is a command of this repository in a bare Debian of its own (tools/bare). ``.ci/run`` has
what must be seen before a change lands, ``.ci/long`` the rest. It needs the standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

from lab.bare import cli as bare
from tools import figures, long_record, outcomes
from tools.environments import LOG, ROOT
from tools.outcomes import Row

# The seconds after which a part is ended: it takes half of them on two processors with nothing else
# to do.
_RUN_S, _LONG_S = 75 * 60, 2 * 80 * 60
_EVERY_S = 60.0
_TESTS = "tools/test"


@dataclasses.dataclass(frozen=True)
class Part:
    """A command that runs in a bare root of a Debian release. ``{seed}`` is the run's.

    A command that is not ``tools/test`` counts as one test. ``is_cold``: without the downloads of
    former runs. ``is_nightly``: in the slice of the long tier that runs each night.
    """

    name: str
    debian: int
    command: str
    is_cold: bool = False
    is_nightly: bool = False


# Nova's ways to a guest and back, and what differs between its releases
_WAYS = (
    "test_(claims|guest_tree|kvm|lifecycle|signatures|upgrades)[.]"
    "|live_migration[.]MediatedTest[.]test_there"
)

# README's two commands as a newcomer meets them, each in a bare Debian, one of them with nothing
# kept; what else a change breaks most; the oldest Nova; and Debian's packages. The longest first.
RUN = (
    Part("tests", 13, "tools/test --seed {seed} --short"),
    Part("demo-cold", 12, "tools/lab demo", is_cold=True),
    Part("packages", 13, ".ci/package"),
    Part("nova-2024.1-ways", 12, f"tools/test --nova 29 -k {shlex.quote(_WAYS)} functional"),
    Part("client", 12, ".ci/client"),
)
# At most 80 minutes each on two processors
LONG = (
    Part("vm", 13, "tools/test vfio moves", is_nightly=True),
    Part("vm-debian-12", 12, "tools/test vfio", is_nightly=True),
    Part("takeover", 13, "tools/test -k .ThereAndBackTest takeover", is_nightly=True),
    Part("takeover-reported", 13, "tools/test -k .ReportedTest takeover"),
    Part("bars", 13, "tools/test bars numa", is_nightly=True),
    Part("machine", 13, "tools/test lxc guide", is_nightly=True),
    Part("crash", 13, "tools/test --seed {seed} crash", is_nightly=True),
    Part("takeovers", 13, "tools/test --seed {seed} takeovers"),
    Part("clouds-1", 13, "tools/test --seed {seed}1 clouds"),
    Part("clouds-2", 13, "tools/test --seed {seed}2 clouds"),
    Part("operations", 13, "tools/test --seed {seed} operations"),
    Part("operations-eventlet", 13, "tools/test --seed {seed} --nova 32 operations"),
    Part("nova-2026.1", 12, "tools/test --nova 33 functional", is_nightly=True),
    Part("nova-2025.2", 12, "tools/test --nova 32 functional", is_nightly=True),
    Part("nova-2025.1", 12, "tools/test --nova 31 functional", is_nightly=True),
    Part("nova-2024.1", 12, "tools/test --nova 29 functional", is_nightly=True),
    Part("nova-functional", 13, "tools/test nova-functional"),
    Part("matrix-pairs", 13, "tools/test matrix-pairs", is_nightly=True),
    Part("matrix-calls", 13, "tools/test --seed {seed} matrix-calls"),
    Part("matrix-triples", 13, "tools/test --seed {seed} matrix-triples"),
    Part("tenants", 13, "tools/test --seed {seed} tenants", is_nightly=True),
    Part("faults", 13, "tools/test faults"),
    Part("fuzz-1", 13, "tools/test fuzz"),
    Part("fuzz-2", 13, "tools/test fuzz"),
    Part("histories", 13, "tools/test histories"),
    Part("fields", 13, "tools/test fields"),
    Part("demo", 13, "tools/lab demo", is_nightly=True),
    Part("functional", 13, "tools/test functional", is_nightly=True),
    Part("nova-and-extensions", 13, "tools/test nova extensions", is_nightly=True),
    Part("demo-debian", 13, "tools/lab demo --debian", is_nightly=True),
    Part("upgrade", 13, "tools/lab upgrade HEAD~100"),
    Part("releases", 13, "tools/test releases"),
    Part("kolla", 12, ".ci/kolla", is_nightly=True),
    Part("billing", 12, ".ci/billing"),
    Part("kvm", 13, ".ci/kvm"),
    Part("guide-kvm", 13, "tools/lab guide --kvm"),
    Part("walk", 13, "tools/lab guide --walk"),
    Part("tempest", 13, "sh -c 'tools/lab up && tempest-plugin/against-lab'"),
)
# In neither are the suite "gpu", which needs a real card, and the benchmarks, which are figures to
# compare and no tests: the unit suite runs each of them once.


class _Runner:
    """Runs parts and prints their output as a whole when they end."""

    def __init__(self, seed: int, limit_s: float) -> None:
        self._seed, self._limit_s = seed, limit_s
        self._printing = threading.Lock()
        self.running: dict[str, float] = {}

    def run(self, part: Part) -> list[Row]:
        """Run a part, a command a second time if it fails, and return its rows.

        The first is the part's own, the others those of its suites.
        """
        began = self.running[part.name] = time.monotonic()
        log = LOG / f"part-{part.name}.log"
        text, ended = self._once(part, log)
        processor_s, is_unsteady = ended.processor_s, False
        if ended.returncode and not part.command.startswith(_TESTS):
            # For what a busy machine or a server upsets, as CI=true tools/test does for tests
            with self._printing:
                print(f"=== {part.name} ended with {ended.returncode}\n{text}", flush=True)
            text, ended = self._once(part, log)
            processor_s, is_unsteady = processor_s + ended.processor_s, not ended.returncode
        del self.running[part.name]
        seconds = time.monotonic() - began
        rows = outcomes.rows(text) if part.command.startswith(_TESTS) else []
        if rows and rows[-1].tests:
            own = dataclasses.replace(rows.pop(), name=part.name)
            # The suites may have passed where what runs them failed.
            failed = max(own.failed, int(ended.returncode != 0))
        else:
            # A run that did not get as far as its closing line has failed.
            is_well = not ended.returncode and not part.command.startswith(_TESTS)
            own = Row(part.name, int(is_well), 0, 0, int(is_unsteady))
            failed = int(not is_well)
        own = dataclasses.replace(own, failed=failed, seconds=seconds, processor_s=processor_s)
        with self._printing:
            print(f"=== {part.name}: {shlex.join(command(part, self._seed))}\n{text}", flush=True)
            print(f"=== {part.name}: {own.closing()} ({seconds:.0f} s)", flush=True)
        suites = [row for row in rows if not row.name.startswith("(")]
        return [own, *(dataclasses.replace(row, name=f"{part.name}/{row.name}") for row in suites)]

    def _once(self, part: Part, log: Path) -> tuple[str, outcomes.Ended]:
        variables = {**os.environ, "CI": "true"}
        argv = command(part, self._seed)
        ended = outcomes.execute(argv, log, self._limit_s, cwd=ROOT, env=variables)
        return log.read_text(errors="replace"), ended

    def progress(self) -> str:
        """Return the parts that run, and for how long each does."""
        now = time.monotonic()
        return ", ".join(
            f"{name} for {now - began:.0f} s" for name, began in [*self.running.items()]
        )


def command(part: Part, seed: int) -> list[str]:
    """Return the command with which a part runs on this machine."""
    words = shlex.split(part.command.replace("{seed}", str(seed)))
    options = ["--debian", str(part.debian), *(["--cold"] if part.is_cold else [])]
    return ["tools/bare", *options, *words]


def _side_by_side(parts: Sequence[Part], runner: _Runner) -> list[Row]:
    """Run as many parts at the same time as there are processors; each has suites of its own."""
    rows: dict[str, list[Row]] = {}
    began = time.monotonic()
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(runner.run, part): part.name for part in parts}
        waiting = set(running)
        while waiting:
            done, waiting = futures.wait(waiting, timeout=_EVERY_S)
            rows |= {running[future]: future.result() for future in done}
            if waiting:
                elapsed = time.monotonic() - began
                print(f"{elapsed:6.0f} s: {runner.progress()}", flush=True)
    return [row for part in parts for row in rows[part.name]]


def _close(rows: Sequence[Row], seconds: float) -> int:
    """Print the closing table, keep its figures, and return the exit status."""
    own = [row for row in rows if "/" not in row.name]
    total = outcomes.total(own, seconds)
    print(f"\n{outcomes.table([*rows, total])}")
    file = bare.cache() / "figures.json"
    print("\n".join([*figures.grown(figures.kept(file), rows), ""]).lstrip("\n"), end="")
    with contextlib.suppress(OSError):  # of another user: then there is nothing to compare
        figures.keep(file, rows)
    print(total.closing(), flush=True)
    return 1 if total.failed else 0


def run(arguments: Sequence[str]) -> int:
    """Run the parts of a change side by side; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        prog=".ci/run",
        description="Run what must be seen before a change lands, as root, on a clean checkout, in "
        "at most 45 minutes on two processors. On the machine it installs mmdebstrap and keeps "
        "downloads (tools/bare --help). The last line adds all tests up.",
    )
    options = _parse(parser, arguments)
    began = time.monotonic()
    rows = _side_by_side(RUN, _Runner(options.seed, _RUN_S))
    return _close(rows, time.monotonic() - began)


def long(arguments: Sequence[str]) -> int:
    """Run parts of the long tier one after another; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        prog=".ci/long",
        description="Run what .ci/run leaves out, as root, on a clean checkout, part by part, and "
        f"write the results to {long_record.PAGE.relative_to(ROOT)}.",
    )
    names = [part.name for part in LONG]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the parts, and run nothing")
    parser.add_argument("--nightly", action="store_true", help="the parts of each night: 6 hours")
    parser.add_argument("--release", action="store_true", help="all parts: at most 24 hours")
    options = _parse(parser, arguments)
    if wrong := set(options.parts) - set(names):
        parser.error(f"no part is called {', '.join(sorted(wrong))}; see --list")
    parts = [
        part
        for part in LONG
        if options.release or part.name in options.parts or (options.nightly and part.is_nightly)
    ]
    if options.list:
        # By the workflows as well
        print("\n".join(part.name for part in parts or LONG))
        return 0
    if not parts:
        parser.error("name parts, or --nightly or --release")
    began, runner = time.monotonic(), _Runner(options.seed, _LONG_S)
    rows = []
    for part in parts:
        print(f"{time.monotonic() - began:6.0f} s: {part.name}", flush=True)
        own, *suites = runner.run(part)
        rows += [own, *suites]
        long_record.write(own, _commit(), names)
    return _close(rows, time.monotonic() - began)


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a tier, which ends at once by a signal, with all that it started."""
    # Not os.urandom's many digits: it is copied by hand to repeat a run.
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of a former run")
    options = parser.parse_args(arguments)
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda number, _: os._exit(128 + number))
    LOG.mkdir(parents=True, exist_ok=True)
    if not getattr(options, "list", False):
        print(f"seed {options.seed}", flush=True)
    return options


def _commit() -> str:
    """Return the commit that bare roots have."""
    argv = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
