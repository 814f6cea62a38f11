# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash.inside POINTS SEED PATTERN``: in libvirtd's mount namespace."""

from __future__ import annotations

import functools
import sys

from tests.cloud import running


def main() -> int:
    stream = running.begin()
    from tests.crash import run

    points, seed, pattern = sys.argv[1:]
    work = functools.partial(run.run, int(points), int(seed), pattern)
    return 0 if running.run(work, running.Result(stream)) else 1


if __name__ == "__main__":
    running.leave(main)
