# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.coverage``: which lines and branches of nova_gpu the tests of a suite run.

``run SUITE`` runs it as tools/test does, with coverage in all its processes, and writes a file;
``show FILE`` prints the totals of such files, and ``compare BEFORE AFTER`` what the first reaches
and the second does not. Several files are taken together when they are joined by a comma.

It sees into the VMs of ``vfio`` and ``moves`` and into the lab of ``guide``. It does not see what a
process did that is killed with SIGKILL, what runs in guests, nor the scripts that nova_gpu starts
without site-packages (``python -I -S``).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import coverage

from tools import measuring, reached
from tools.measuring import DATA, PACKAGE, START
from tools.reached import Measured, Module
from tools.testing import session, suites
from tools.testing.environment import NEWEST, ROOT, Environment

# Measuring takes time, and a process that is ended for its suite's limit writes nothing down.
_LONGER = 4


def main(arguments: Sequence[str]) -> int:
    """0, or 1 where a suite failed, or where *compare* finds what is reached no more."""
    options = _parse(arguments)
    if options.command == "run":
        target = Path(options.to or f"{options.suite}.json")
        failed, measured = _run(suites.BY_NAME[options.suite], options.pattern)
        target.write_text(json.dumps(reached.plain(measured)))
        print(reached.totals(measured))
        return int(failed)
    if options.command == "show":
        for names in options.files:
            print(reached.totals(reached.read(names)))
        return 0
    lines = reached.compare(reached.read(options.before), reached.read(options.after))
    print("\n".join(lines) if lines else "nothing that was reached is reached no more")
    return int(bool(lines))


def _run(suite: suites.Suite, pattern: str | None) -> tuple[bool, Measured]:
    with tempfile.TemporaryDirectory(prefix="nova-gpu-coverage-") as folder:
        # Some tests run a process as another user.
        os.chmod(folder, 0o1777)
        settings = Path(folder, "coveragerc")
        settings.write_text(config(Path(folder, DATA)))
        settings.chmod(0o644)
        os.environ[START] = str(settings)
        suite = dataclasses.replace(suite, limit_s=_LONGER * suite.limit_s)
        result = session.run(suite, Environment(NEWEST), pattern, threading.Event())
        found = modules(settings)
    name = f"{suite.name} -k {pattern}" if pattern else suite.name
    measured = Measured(name, str(result.outcome), result.seconds, result.cpu_s, found)
    return bool(result.outcome.failed), measured


def config(data: Path) -> str:
    """Coverage's settings: what processes of this checkout are to do, and which files are the same,
    in a VM, and in a lab, where the package is installed."""
    settings = measuring.config(data, f"source = {ROOT / PACKAGE}")
    return f"""{settings}
[paths]
package =
    {ROOT / PACKAGE}
    /project/{PACKAGE}
    */site-packages/{PACKAGE}
shim =
    {ROOT / PACKAGE}/virt_ext
    */site-packages/nova/virt/gpu
"""


def modules(settings: Path) -> Mapping[str, Module]:
    combined = coverage.Coverage(config_file=str(settings))
    combined.combine()
    # Those too of which nothing was run
    combined.get_data().touch_files([str(path) for path in (ROOT / PACKAGE).rglob("*.py")])
    report = settings.with_name("report.json")
    combined.json_report(outfile=str(report))
    found = {}
    for name, file in json.loads(report.read_text())["files"].items():
        path = ROOT / name
        lines, branches = file["executed_lines"], file["executed_branches"]
        found[str(path.relative_to(ROOT))] = reached.module(
            {
                "digest": hashlib.sha256(path.read_bytes()).hexdigest(),
                "lines": lines,
                "all_lines": lines + file["missing_lines"],
                "branches": branches,
                "all_branches": branches + file["missing_branches"],
            }
        )
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.coverage",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure one suite")
    run.add_argument("suite", choices=suites.BY_NAME)
    run.add_argument("-k", dest="pattern", help="run the tests whose name matches (stestr)")
    run.add_argument("--to", metavar="FILE", help="default: SUITE.json")
    show = commands.add_parser("show", help="print the totals")
    show.add_argument("files", nargs="+", metavar="FILE")
    comparing = commands.add_parser("compare", help="what is reached before and not after")
    comparing.add_argument("before", metavar="BEFORE")
    comparing.add_argument("after", metavar="AFTER")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
