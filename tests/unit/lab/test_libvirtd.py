# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import testtools

from lab.cloud import libvirtd_log

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
