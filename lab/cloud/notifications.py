# SPDX-License-Identifier: Apache-2.0
"""Receives notifications about GPUs from the lab's RabbitMQ, by the script ``listener``."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.cloud import listener, settings, steps

_SCRIPT = pathlib.Path(listener.__file__)
_SHOWN = ("instance_uuid", "host", "addresses", "product_id", "architecture", "count", "reason")
_READY_S = 60.0

Heard = Mapping[str, Any]


class Receiver:
    """The running script, and all notifications that it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.heard: list[Heard] = []
        self.ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == listener.READY:
                self.ready.set()
            elif line.startswith("{"):
                self.heard.append(json.loads(line))

    def wait_for(self, *event_types: str, timeout_s: float = 30.0) -> Sequence[Heard]:
        """Wait for a notification of each of *event_types*; return all received so far."""

        def missing() -> set[str]:
            return set(event_types) - {event["event_type"] for event in self.heard}

        try:
            steps.wait_for("notifications", lambda: not missing(), timeout_s)
        except steps.Failed:
            raise steps.Failed(
                f"no notification {' or '.join(sorted(missing()))} within {timeout_s:.0f} s"
            ) from None
        return list(self.heard)


@contextlib.contextmanager
def listening(lab: settings.Lab) -> Iterator[Receiver]:
    """Run the script while the block runs, and yield it."""
    with (
        (lab.log / "listener.log").open("w") as log,
        subprocess.Popen(
            [lab.program("python3"), str(_SCRIPT), str(lab.etc / "nova/nova.conf")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **lab.environment()},
        ) as process,
    ):
        try:
            receiver = Receiver(process)
            if not receiver.ready.wait(_READY_S):
                raise steps.Failed(
                    f"the listener for notifications is not ready after {_READY_S:.0f} s: see "
                    "listener.log"
                )
            yield receiver
        finally:
            process.terminate()


def text(heard: Heard) -> str:
    """Return the notification as text: its type, its publisher and some of its fields."""
    known = {key: heard["payload"][key] for key in _SHOWN if heard["payload"][key]}
    fields = "".join(f"\n      {key}: {_plain(value)}" for key, value in known.items())
    return f"{heard['event_type']} from {heard['publisher_id']}{fields}"


def _plain(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


def watch(lab: settings.Lab) -> None:
    """Print each notification about GPUs, until Ctrl-C."""
    with listening(lab) as receiver:
        steps.say("Listening for notifications about GPUs; Ctrl-C ends it.")
        shown = 0
        while True:
            for heard in receiver.heard[shown:]:
                steps.say(text(heard))
                shown += 1
            time.sleep(0.2)
