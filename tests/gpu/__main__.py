# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.gpu [-k PATTERN]``: the readers of a host, on one with a real card of NVIDIA's.

It ends with unittest's own closing lines, or with 77 after a line ``SKIP: reason`` where there is
no card. It changes no setting of a card and resets none; what it saw is kept.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import unittest

from tests.gpu import machine
from tools.testing import environment, suites


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=environment.STATE / "gpu",
        help="keep there what was seen (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if reason := machine.obstacle():
        print(f"SKIP: {reason}")
        return suites.SKIPPED
    machine.without_libvirt()
    machine.seen(arguments.out)
    loader = unittest.TestLoader()
    loader.testNamePatterns = [
        pattern if "*" in pattern else f"*{pattern}*" for pattern in arguments.patterns
    ] or None
    found = loader.discover("tests/gpu", top_level_dir=str(environment.ROOT))
    result = unittest.TextTestRunner(sys.stdout, descriptions=False, verbosity=2).run(found)
    print(f"seen: {arguments.out}", file=sys.stderr)
    return 0 if result.wasSuccessful() and result.testsRun else 1


if __name__ == "__main__":
    sys.exit(main())
