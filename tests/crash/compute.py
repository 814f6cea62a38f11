# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash.compute SOCKET CONFIG IMAGE``: nova-compute as often as it is asked for.

A line on standard input has it fork; the fork's pid is written to standard output.
"""

from __future__ import annotations

import pathlib
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any

from tests.cloud import compute, process  # before anything else of Nova

# isort: split

from nova.tests.fixtures import glance

from tests.cloud import base
from tests.crash import points


class Compute(compute.Compute):
    """A service that may be given a trap."""

    def __init__(self, serve_images: Callable[[glance.GlanceFixture], None]) -> None:
        super().__init__(serve_images)
        self._trap = points.Trap()

    def handlers(self) -> Mapping[str, Callable[..., Any]]:
        return {**super().handlers(), "trap": self._trap.set}


def main() -> None:
    socket, configuration, image = sys.argv[1:]

    def serve(images: glance.GlanceFixture) -> None:
        content = pathlib.Path(image).read_bytes()
        images._imagedata[base.IMAGE] = content
        images.images[base.IMAGE]["size"] = len(content)

    arguments = ["nova-compute", "--config-file", configuration]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    print("ready", flush=True)

    def run() -> None:
        Compute(serve).run(arguments, lambda: connection.Client(socket))

    for _ in sys.stdin:
        print(process.fork(run), flush=True)


if __name__ == "__main__":
    main()
