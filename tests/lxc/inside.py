# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lxc.inside [PATTERN ...]``: the tests, in libvirtd's mount namespace."""

from __future__ import annotations

import sys

from tests.cloud import running


def main() -> int:
    stream = running.begin()
    suite = running.discover("tests/lxc", sys.argv[1:])
    return 0 if running.run(suite, running.Result(stream)) else 1


if __name__ == "__main__":
    running.leave(main)
