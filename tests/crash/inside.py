# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash.inside``: the run, in libvirtd's mount namespace."""

from __future__ import annotations

from tests.cloud import running


def main() -> int:
    stream = running.begin()
    from tests.crash import run

    return 0 if running.run(run.run, running.Result(stream)) else 1


if __name__ == "__main__":
    running.leave(main)
