# SPDX-License-Identifier: Apache-2.0
"""By the sockets of the kernel on which the tests run."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
from typing import IO

import fixtures
from oslotest import base

from nova_gpu.host import service_socket
from nova_gpu.host.roots import Roots

NOBODY = 65534
CLAIMS = """
import pathlib, sys
from nova_gpu.host import roots, service_socket
print(service_socket.claim(roots.Roots(sysfs=pathlib.Path(sys.argv[1]))), flush=True)
input()
"""
BINDS = """
import os, socket, sys
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
one = socket.socket(socket.AF_UNIX)
one.bind("\\0" + sys.argv[1]); one.listen(0)
file = os.memfd_create(" ".join(sys.argv[1].split()[:2]))
print(flush=True)
input()
"""


class ClaimTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.sysfs = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.roots = Roots(sysfs=self.sysfs)
        self.own: dict[bytes, tuple[socket.socket, IO[bytes]]] = {}
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.service_socket._own", self.own))

    def run_other(self, code: str, *words: str) -> tuple[subprocess.Popen[str], str]:
        pipe = subprocess.PIPE
        argv = [sys.executable, "-c", code, *words]
        other = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
        self.addCleanup(other.communicate)
        self.addCleanup(other.kill)
        assert other.stdout
        return other, other.stdout.readline().strip()

    def name(self) -> str:
        """That of this process, as the kernel has it"""
        self.assertIsNone(service_socket.claim(self.roots))
        ((own, file),) = self.own.values()
        self.addCleanup(file.close)
        self.addCleanup(own.close)
        return bytes(own.getsockname())[1:].decode()

    def let_go(self) -> None:
        for listener in self.own.popitem()[1]:
            listener.close()

    def test_one_of_two_has_it_until_it_ends(self) -> None:
        other, output = self.run_other(CLAIMS, str(self.sysfs))
        self.assertEqual("None", output)
        self.assertEqual(f"pid {other.pid}", service_socket.claim(self.roots))
        other.kill()
        other.wait()
        self.name()
        self.assertIsNone(service_socket.claim(self.roots), "it is its own")
        self.assertEqual(f"pid {os.getpid()}", self.run_other(CLAIMS, str(self.sysfs))[1])
        self.assertEqual(
            "None", self.run_other(CLAIMS, str(self.sysfs.parent))[1], "of other cards"
        )

    def test_one_of_the_former_release(self) -> None:
        prefix, *_ = self.name().rpartition(" ")[0].rpartition(" ")
        self.let_go()
        self.run_other(BINDS, prefix, str(os.getuid()))
        self.assertEqual("pid unknown", service_socket.claim(self.roots))

    def test_what_another_user_binds(self) -> None:
        """Neither keeps the service from its cards, nor hides another service."""
        if os.geteuid():
            self.skipTest("only root is another user")
        name = self.name()
        prefix, *_ = name.rpartition(" ")[0].rpartition(" ")
        self.let_go()
        for socket_name in (prefix, f"{prefix} 1", f"{prefix} {os.getpid()} 0000"):
            self.run_other(BINDS, socket_name, str(NOBODY))
        other, output = self.run_other(CLAIMS, str(self.sysfs))
        self.assertEqual("None", output)
        self.assertEqual(f"pid {other.pid}", service_socket.claim(self.roots))

    def test_where_the_kernel_lists_no_sockets(self) -> None:
        """By what processes of the same user have open, which another user's cannot be"""
        prefix, *_ = self.name().rpartition(" ")[0].rpartition(" ")
        self.let_go()
        no_protocol = "nova_gpu.host.service_socket._NETLINK_SOCK_DIAG"
        self.useFixture(fixtures.MonkeyPatch(no_protocol, 99))
        if not os.geteuid():
            self.run_other(BINDS, prefix, str(NOBODY))
        other, _ = self.run_other(CLAIMS, str(self.sysfs))
        self.assertEqual(f"pid {other.pid}", service_socket.claim(self.roots))
        self.assertEqual({}, self.own)
        other.kill()
        other.wait()
        self.name()
        unreadable = "nova_gpu.host.service_socket._PROC"
        self.let_go()
        with fixtures.MonkeyPatch(unreadable, str(self.sysfs / "proc")):
            self.assertRaises(OSError, service_socket.claim, self.roots)
