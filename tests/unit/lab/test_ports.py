# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.cloud import ports

_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid inode"


class ListenersTest(testtools.TestCase):
    """A generated /proc: a process 42 with socket 777."""

    def setUp(self) -> None:
        super().setUp()
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.proc / "net").mkdir()
        (self.proc / "42/fd").mkdir(parents=True)
        (self.proc / "42/fd/3").symlink_to("socket:[777]")
        (self.proc / "42/cmdline").write_text("mariadbd\0--port=3307\0")

    def _table(self, name: str, address: str, state: str, inode: int) -> None:
        line = f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:0 0 0 0 {inode} 1 0"
        (self.proc / "net" / name).write_text(f"{_HEAD}\n{line}\n")

    def test_names_the_process(self) -> None:
        self._table("tcp", "0100007F:0CEB", "0A", 777)
        self.assertEqual(
            ["port 3307, which mariadb needs, is taken by process 42 (mariadbd --port=3307)"],
            ports.taken({"mariadb": 3307, "keystone": 5000}, self.proc),
        )
