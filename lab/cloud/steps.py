# SPDX-License-Identifier: Apache-2.0
"""Steps of the lab: each prints a line with its seconds, and fails with its log.

All that the lab does raises Failed, with what to do, if it cannot.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

_TAIL_LINES = 15
_LINE = threading.Lock()


class Failed(Exception):
    """The error that a step failed; the text says what failed, why, and what to do."""


def say(text: str) -> None:
    with _LINE:
        print(text, flush=True)


def _tail(log: pathlib.Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)
    except OSError as error:
        return f"    ({error})"


@contextlib.contextmanager
def step(name: str, log: pathlib.Path | None = None) -> Iterator[None]:
    """Print *name* and the seconds that the block took.

    :raises Failed: in place of any error in the block, with the end of the file *log*
    """
    began = time.monotonic()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        say(f"  {time.monotonic() - began:6.1f} s  {name}: FAILED")
        reason = str(error) or type(error).__name__
        if isinstance(error, subprocess.CalledProcessError) and error.stderr:
            reason += f"\n{error.stderr}"
        if log is not None:
            reason += f"\n  its log {log} ends with:\n{_tail(log)}"
        raise Failed(f"{name}: {reason}") from error
    say(f"  {time.monotonic() - began:6.1f} s  {name}")


def together(*steps: Callable[[], None]) -> None:
    """Call all *steps* at the same time, each in a thread, and wait for their ends."""
    if not steps:
        return
    with concurrent.futures.ThreadPoolExecutor(len(steps)) as pool:
        for future in [pool.submit(call) for call in steps]:
            future.result()


def run(
    argv: Sequence[str],
    log: pathlib.Path,
    env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None,
) -> None:
    """Run the command *argv*, and append its output to the file *log*."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        out.write(f"$ {' '.join(argv)}\n".encode())
        out.flush()
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd, check=False
        )
    if result.returncode:
        raise Failed(f"`{' '.join(argv)[:200]}` ended with status {result.returncode}")


def wait_for(
    what: str, check: Callable[[], bool], timeout_s: float = 60.0, pause_s: float = 0.2
) -> None:
    """Call *check* every *pause_s* seconds until it returns true."""
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            raise Failed(f"gave up waiting for {what} after {timeout_s:.0f} s")
        time.sleep(pause_s)
