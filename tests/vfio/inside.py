# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.inside [PATTERN ...]``: the tests that need no cloud, in a VM."""

from __future__ import annotations

import pathlib
import sys

from tests.cloud import running
from tests.vfio import place, progress

_OUT = pathlib.Path("/out")


def main() -> int:
    stream = running.begin()
    result = progress.Result(stream, _OUT, lambda: None)
    for test in progress.left(progress.HOST, place.TESTS, sys.argv[1:], _OUT):
        test.run(result)
    stream.flush()
    return 1 if result.failed else 0


if __name__ == "__main__":
    running.leave(main)
