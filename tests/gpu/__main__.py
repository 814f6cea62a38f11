# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.gpu [-k PATTERN]``: the readers of a host, on one with a real card of NVIDIA's.

It prints stestr's lines, or ends with 77 after a line ``SKIP: reason`` where there is no card. It
changes no setting of a card and resets none; what it saw is kept.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from tests.cloud import running
from tests.gpu import machine
from tools import environments, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=environments.STATE / "gpu",
        help="keep there what was seen (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if reason := machine.obstacle():
        print(f"SKIP: {reason}")
        return outcomes.SKIPPED
    machine.without_libvirt()
    machine.seen(arguments.out)
    passed = running.run(
        running.discover("tests/gpu", arguments.patterns), running.Result(sys.stdout)
    )
    print(f"seen: {arguments.out}", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
