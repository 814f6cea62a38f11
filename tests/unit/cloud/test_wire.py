# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import queue
import socket
import threading
import unittest
from multiprocessing import connection
from typing import Any

from tests.cloud import wire


class LinkTest(unittest.TestCase):
    def setUp(self) -> None:
        ours, self._theirs = connection.Pipe()
        self._here = self._link(ours, {"twice": lambda number: 2 * number})
        self._asked = threading.Event()
        self._there = self._link(self._theirs, {"fail": self._fail, "hang": self._hang})

    def _link(self, stream: Any, handlers: wire.Handlers) -> wire.Link:
        link = wire.Link(stream, handlers)
        threading.Thread(target=link.serve, daemon=True).start()
        self.addCleanup(stream.close)
        return link

    def _fail(self) -> None:
        raise ValueError("no such card")

    def _hang(self) -> None:
        self._asked.set()
        threading.Event().wait(200)

    def test_answers_in_both_directions(self) -> None:
        self.assertEqual(42, self._there.ask("twice", 21))
        with self.assertRaisesRegex(wire.Failed, "ValueError: no such card"):
            self._here.ask("fail")

    def test_no_answer_in_time(self) -> None:
        self.assertRaises(queue.Empty, self._here.ask, "hang", timeout_s=0.05)

    def test_the_other_end_dies(self) -> None:
        def die() -> None:
            self._asked.wait(200)
            with socket.socket(fileno=os.dup(self._theirs.fileno())) as stream:
                stream.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=die, daemon=True).start()
        self.assertRaises(wire.Gone, self._here.ask, "hang", timeout_s=200)
        self.assertRaises(wire.Gone, self._here.ask, "hang", timeout_s=200)
