# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import subprocess

import fixtures
import testtools

from lab.cloud import libvirtd, libvirtd_log, steps

# As libvirt 9.0 wrote it on a Debian without libvirt-daemon-system.
NO_USER = """\
2026-11-23 14:39:21.507+0000: 1969: info : libvirt version: 9.0.0, package: 9.0.0-4 (Debian)
2026-11-23 14:39:21.507+0000: 1969: error : dnsmasqCapsNewFromBinary:673 : Unable to find 'dnsmasq'
2026-11-23 14:39:21.518+0000: 1969: error : virGetUserID:760 : invalid argument: Failed to parse user 'libvirt-qemu'
2026-11-23 14:39:21.518+0000: 1969: error : virStateInitialize:660 : Initialization of QEMU state driver failed: invalid argument: Failed to parse user 'libvirt-qemu'
2026-11-23 14:39:21.518+0000: 1969: error : daemonRunStateInit:616 : Driver state initialization failed
"""  # noqa: E501


class ReasonTest(testtools.TestCase):
    def test_user_of_the_qemu_driver(self) -> None:
        for log in (NO_USER, NO_USER.replace("user 'libvirt-qemu'", "group 'libvirt-qemu'")):
            line = libvirtd_log.reason(log)
            self.assertIn(f"no {'user' if log is NO_USER else 'group'} libvirt-qemu", line)
            self.assertTrue(line.endswith("apt-get install libvirt-daemon-system"), line)
            self.assertNotIn("\n", line)

    def test_another_error_of_a_driver(self) -> None:
        log = NO_USER.replace("Failed to parse user 'libvirt-qemu'", "cannot read /etc/x")
        self.assertEqual("its QEMU driver says: cannot read /etc/x", libvirtd_log.reason(log))

    def test_an_error_that_ends_no_driver(self) -> None:
        log = NO_USER.split("virGetUserID")[0] + "main:1 : Can't load Config: No such file\n"
        self.assertEqual("Can't load Config: No such file", libvirtd_log.reason(log))

    def test_what_the_shell_says(self) -> None:
        for said, word in (
            ("sh: 1: exec: libvirtd: not found\n", "apt-get install libvirt-daemon-system"),
            ("unshare: unshare failed: Operation not permitted\n", "CAP_SYS_ADMIN"),
            ("mount: /dev: permission denied.\n", "CAP_SYS_ADMIN"),
            ("sh: 3: cannot open x\n", "sh: 3: cannot open x"),
            ("", "nothing"),
        ):
            self.assertIn(word, libvirtd_log.reason(said))


class StartTest(testtools.TestCase):
    def test_is_said_in_one_line(self) -> None:
        """By a process that ends as libvirtd did, and as the lab says it."""
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        out = self.useFixture(fixtures.StringStream("stdout")).stream
        self.useFixture(fixtures.MonkeyPatch("sys.stdout", out))
        started = libvirtd.PrivateLibvirtd(folder, ())
        log = folder / "libvirt" / "libvirtd.log"
        log.parent.mkdir()
        log.write_text(NO_USER)
        started._child = subprocess.Popen(["sh", "-c", "exit 6"])

        def failing() -> None:
            with steps.step("libvirtd"):
                started._wait()

        text = str(self.assertRaises(steps.Failed, failing))
        self.assertEqual(1, len(text.splitlines()), text)
        self.assertIn("ended with status 6", text)
        self.assertIn("no user libvirt-qemu", text)
        self.assertIn(str(log), text)
