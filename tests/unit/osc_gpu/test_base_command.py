# SPDX-License-Identifier: Apache-2.0
"""Services that accept a connection and never answer, or stop in the midst of it"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from types import SimpleNamespace

from osc_lib import exceptions

from osc_gpu import base_command, explain, providers, rest, usage
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
            for each in connected:
                each.close()


# OpenStackClient's own shell, with what it may wait for Keystone cut short
_SHELL = """
import sys
from osc_lib import shell
from osc_lib.command import commandmanager
from osc_gpu import base_command
base_command.TIMEOUT_S = 0.5
commands = commandmanager.CommandManager("openstack.gpu.v1")
sys.exit(shell.OpenStackShell(command_manager=commands).run(sys.argv[1:]))
"""


class SilentKeystoneTest(unittest.TestCase):
    def test_one_line(self) -> None:
        """Before the command is asked anything"""
        with silent() as (url, connected):
            done = self._asked(url)
        self.assertEqual(1, done.returncode, done.stderr)
        self.assertRegex(done.stderr, rf"\A{url}/v3 did not answer GET within 0.5 s")
        self.assertEqual(1, done.stderr.count("\n"), done.stderr)
        self.assertEqual(1, len(connected))

    def _asked(self, url: str) -> subprocess.CompletedProcess[str]:
        auth = {"auth_url": f"{url}/v3", "username": "demo", "password": "secret"}
        auth |= {
            "project_name": "demo",
            "user_domain_id": "default",
            "project_domain_id": "default",
        }
        with tempfile.TemporaryDirectory() as folder:
            clouds = pathlib.Path(folder, "clouds.yaml")
            clouds.write_text(json.dumps({"clouds": {"silent": {"auth": auth}}}))
            return subprocess.run(
                [sys.executable, "-W", "ignore", "-c", _SHELL, "gpu", "group", "list"],
                env={**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds), "OS_CLOUD": "silent"},
                capture_output=True,
                text=True,
                timeout=120,
            )


class SilentServiceTest(unittest.TestCase):
    def refusal(self, command: type, url: str, *arguments: str) -> str:
        """Within minutes, as the test itself would wait for ever otherwise"""
        cloud = SimpleNamespace(
            api=SimpleNamespace(project_id="p", base_url=f"{url}/v2.1"),
            placement=SimpleNamespace(fixture=SimpleNamespace(endpoint=url)),
        )
        said: list[BaseException] = []

        def run() -> None:
            try:
                sdk.run(cloud, command, *arguments, "--timeout", "0.5")
            except BaseException as e:
                said.append(e)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(200)
        self.assertFalse(thread.is_alive(), "it waits for ever")
        (error,) = said
        self.assertIsInstance(error, exceptions.CommandError)
        self.assertNotIn("\n", str(error))
        return str(error)

    def test_one_line_and_one_attempt(self) -> None:
        for command, arguments in (
            (providers.ListGroups, ()),
            (usage.ShowUsage, ()),
            (explain.ExplainServer, ("server",)),
        ):
            with self.subTest(command.__name__), silent() as (url, connected):
                begun = time.monotonic()
                said = self.refusal(command, url, *arguments)
                self.assertRegex(said, f"^{url}.* did not answer GET within 0.5 s; see whether")
                self.assertIn("--timeout", said)
                # Nor is it asked in another way, with a wait for each.
                self.assertEqual(1, len(connected), time.monotonic() - begun)

    def test_an_answer_that_stops_in_the_midst(self) -> None:
        with silent(_HEAD) as (url, _):
            self.assertIn("did not answer", self.refusal(providers.ListGroups, url))

    def test_the_next_command_of_a_shell_has_its_own(self) -> None:
        with silent() as (url, _):
            cloud = SimpleNamespace(
                api=SimpleNamespace(project_id="p", base_url=f"{url}/v2.1"),
                placement=SimpleNamespace(fixture=SimpleNamespace(endpoint=url)),
            )
            app = SimpleNamespace(client_manager=SimpleNamespace(sdk_connection=sdk.connect(cloud)))
            command = providers.ListGroups(app, None)
            for seconds in ("600", "0.5"):
                parsed = command.get_parser("openstack").parse_args(["--timeout", seconds])
                connection = command.connection(parsed)
            with self.assertRaisesRegex(exceptions.CommandError, "within 0.5 s"):
                rest.placement(connection, "/traits")

    def test_what_is_no_deadline(self) -> None:
        parser = providers.ListGroups(SimpleNamespace(), None).get_parser("openstack")
        self.assertEqual(base_command.TIMEOUT_S, parser.parse_args([]).timeout)
        for text in ("0", "-1", "nan", "inf", "soon"):
            with self.subTest(text), self.assertRaises(SystemExit):
                parser.parse_args(["--timeout", text])
