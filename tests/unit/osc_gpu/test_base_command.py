# SPDX-License-Identifier: Apache-2.0
"""Services that accept a connection and never answer, or stop in the midst of it"""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
import unittest
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_lib import exceptions

from osc_gpu import base_command, explain, group_list, usage
from tests.functional import sdk

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"


@contextlib.contextmanager
def silent(begin: bytes = b"") -> Iterator[tuple[str, list[socket.socket]]]:
    """Its address, and the connections it was given; each reads *begin* and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connected.append(server.accept()[0])
                    connected[-1].sendall(begin)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}", connected
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(200)
            for connection in connected:
                connection.close()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _cloud(url: str) -> Any:
    return SimpleNamespace(
        api=SimpleNamespace(project_id="p", base_url=f"{url}/v2.1"),
        placement=SimpleNamespace(fixture=SimpleNamespace(endpoint=url)),
    )


class SilentServiceTest(unittest.TestCase):
    def refusal(self, command: type, url: str, *arguments: str) -> str:
        """Within minutes, as the test itself would wait for ever otherwise"""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                sdk.run(_cloud(url), command, *arguments, "--timeout", "0.5")
            except BaseException as e:
                errors.append(e)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(200)
        self.assertFalse(thread.is_alive(), "it waits for ever")
        (error,) = errors
        self.assertIsInstance(error, exceptions.CommandError)
        self.assertNotIn("\n", str(error))
        return str(error)

    def test_one_line_and_one_attempt(self) -> None:
        for command, arguments in (
            (group_list.ListGroups, ()),
            (usage.ShowUsage, ()),
            (explain.ExplainServer, ("server",)),
        ):
            with self.subTest(command.__name__), silent() as (url, connected):
                begun = time.monotonic()
                message = self.refusal(command, url, *arguments)
                self.assertRegex(message, f"^{url}.* did not answer GET within 0.5 s; see whether")
                self.assertIn("--timeout", message)
                # Nor is it asked in another way, with a wait for each.
                self.assertEqual(1, len(connected), time.monotonic() - begun)

    def test_an_answer_that_stops_in_the_midst(self) -> None:
        with silent(_HEAD) as (url, _):
            self.assertIn("did not answer", self.refusal(group_list.ListGroups, url))

    def test_a_terminal_sees_that_it_works(self) -> None:
        for stderr, text in ((_Terminal(), "asking Nova and Placement ...\n"), (io.StringIO(), "")):
            with silent() as (url, _), mock.patch.object(base_command, "_SILENT_S", 0.1):
                app, made, parsed = sdk.prepare(
                    _cloud(url), group_list.ListGroups, "--timeout", "0.5"
                )
                app.stderr = stderr
                self.assertRaises(exceptions.CommandError, made.run, parsed)
            self.assertEqual(text, stderr.getvalue())
