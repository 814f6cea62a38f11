# SPDX-License-Identifier: Apache-2.0
"""Output that nobody reads to its end, as with ``nova-gpu list | head -1``"""

from __future__ import annotations

import os
import subprocess

from nova_gpu.cmd import output
from tests.fixtures import hosts
from tests.fixtures.bases import commands as base


class OutputTest(base.CommandTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.configure("lxc")
        hosts.Host(self.root).add_gpu("0000:04:00.0", "10de", "1091", driver="nvidia")

    def unread(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """As it ends where the reader of its standard output has ended before it began"""
        reader, writer = os.pipe()
        os.close(reader)
        streams = {"capture_output": False, "stdout": writer, "stderr": subprocess.PIPE}
        line = (base.MAIN.format(program), "--config-file", self.conf, *words)
        try:
            return base.fresh(*line, **streams)
        finally:
            os.close(writer)

    def test_not_a_word(self) -> None:
        done = self.unread("gpu", "list")
        self.assertEqual(("", 141), (done.stderr, done.returncode))
        # Of what argparse prints it has looked after itself.
        self.assertEqual("", self.unread("status", "--help").stderr)

    def test_another_pipe_that_broke_is_no_reader_of_ours(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)

        def write() -> None:
            with output.while_read():
                os.write(writer, b"x")

        self.assertRaises(BrokenPipeError, write)
