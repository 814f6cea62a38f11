# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.inside [PATTERN ...]``: the tests that need no cloud, in a VM."""

from __future__ import annotations

import os
import pathlib
import sys
import traceback

from tests.cloud import running
from tests.vfio import progress

_OUT = pathlib.Path("/out")


def main() -> int:
    stream = running.begin()
    result = progress.Result(stream, _OUT, lambda: None)
    progress.left(progress.HOST, sys.argv[1:], _OUT).run(result)
    stream.flush()
    return 1 if result.failed else 0


if __name__ == "__main__":
    try:
        status = main()
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    # libvirt's event thread never ends, and Python would wait for it.
    os._exit(status)
