# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import tempfile
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


class AcceptorTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self._address = f"{folder.name}/socket"
        listener = connection.Listener(self._address)
        self.addCleanup(listener.close)
        self._acceptor = wire.Acceptor(listener)

    def _accept(self, process: subprocess.Popen[bytes], timeout_s: float = 200) -> Any:
        stream = self._acceptor.accept(lambda: process.poll() is not None, timeout_s)
        self.addCleanup(stream.close)
        return stream

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", *words])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_a_process_that_connects_and_the_next_one(self) -> None:
        send = "import sys; from multiprocessing import connection;"
        send += "connection.Client(sys.argv[1]).send(sys.argv[2])"
        for word in ("first", "second"):
            process = self._start(send, self._address, word)
            self.assertEqual(word, self._accept(process).recv())

    def test_a_process_that_dies_before(self) -> None:
        self.assertRaises(wire.Gone, self._accept, self._start("raise SystemExit(1)"))

    def test_a_process_that_hangs(self) -> None:
        process = self._start("import time; time.sleep(600)")
        self.assertRaises(wire.Gone, self._accept, process, 0.01)
