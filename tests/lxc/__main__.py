# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lxc [-k PATTERN]``: Nova in one process on a real libvirtd with its LXC driver.

Run as root. It starts a libvirtd of its own, runs the tests in that one's mount namespace, and
prints stestr's lines, or ends with 77 after a line ``SKIP: reason`` where this machine can run no
container. What the tests left behind is a failure.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.lxc import outside, place
from tools import outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lxc", description=__doc__)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    arguments = parser.parse_args()
    if reason := outside.obstacle():
        print(f"SKIP: {reason}")
        return outcomes.SKIPPED
    if reason := outside.lacks_tracing():
        os.environ[place.NOT_INSTALLED] = reason
    return outside.run("tests.lxc.inside", *arguments.patterns)


if __name__ == "__main__":
    sys.exit(main())
