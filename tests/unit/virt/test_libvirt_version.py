# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import libvirt
from nova import exception as nova_exception
from oslotest import base

from nova_gpu.virt.libvirt_version import LibvirtVersion


class LibvirtVersionTest(base.BaseTestCase):
    def ask(self) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def test_what_it_said_last_counts_while_it_is_away(self) -> None:
        version = LibvirtVersion(self.ask)
        self.answer: int | Exception = nova_exception.HypervisorUnavailable()
        self.assertIsNone(version())
        self.answer = 10000000
        self.assertEqual(10000000, version())
        self.answer = libvirt.libvirtError("it is being restarted")
        self.assertEqual(10000000, version())
        self.answer = 10001000
        self.assertEqual(10001000, version())
