# SPDX-License-Identifier: Apache-2.0
"""QEMU's monitor and a second serial line of its VM, over pairs of sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from typing import Any

_POLL_S = 0.1


class Refused(Exception):
    """A command that QEMU refused, with its own text, or a QEMU that has ended."""


class Monitor:
    """The monitor of one QEMU, which must be started with :attr:`arguments` and :attr:`fds`."""

    def __init__(self) -> None:
        self._pairs = {name: socket.socketpair() for name in ("qmp", "word")}
        self.fds: Sequence[int] = [pair[1].fileno() for pair in self._pairs.values()]
        self._answers = self._pairs["qmp"][0].makefile("r")

    @property
    def arguments(self) -> list[str]:
        words = []
        for (name, _), fd in zip(self._pairs.items(), self.fds, strict=True):
            words += ["-chardev", f"socket,id={name},fd={fd}"]
        return [*words, "-mon", "chardev=qmp,mode=control", "-serial", "chardev:word"]

    def begin(self) -> None:
        """Open the monitor after QEMU has been started."""
        for _, theirs in self._pairs.values():
            theirs.close()
        self._answers.readline()
        self.ask("qmp_capabilities")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Run a command of the monitor, and return its answer."""
        question = {"execute": command, "arguments": arguments}
        try:
            self._pairs["qmp"][0].sendall(json.dumps(question).encode() + b"\n")
            for line in self._answers:
                answer = json.loads(line)
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    raise Refused(f"{command}: {answer['error']['desc']}")
        except OSError as error:
            raise Refused(f"{command}: {error}") from error
        raise Refused(f"{command}: QEMU has ended")

    def wait(self, command: str, status: str, limit_s: float) -> None:
        """Wait until the answer to *command* has this ``status``.

        :raises Refused: if it does not within *limit_s*, or never can
        """
        ends = time.monotonic() + limit_s
        while (state := self.ask(command).get("status")) != status:
            if state == "failed" or time.monotonic() > ends:
                raise Refused(f"{command}: {state} and not {status}")
            time.sleep(_POLL_S)

    def tell(self, line: str) -> None:
        """Write *line* to the VM's second serial line."""
        self._pairs["word"][0].sendall(f"{line}\n".encode())

    def close(self) -> None:
        self._answers.close()
        for pair in self._pairs.values():
            for end in pair:
                end.close()
