# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from unittest import mock

import libvirt
from nova import exception as nova_exception
from oslotest import base

from nova_gpu.virt.libvirt_version import LibvirtVersion


class LibvirtVersionTest(base.BaseTestCase):
    def test_what_it_said_last_counts_while_it_is_away(self) -> None:
        restarted = libvirt.libvirtError("it is being restarted")
        answers = [nova_exception.HypervisorUnavailable(), 10000000, restarted, 10001000]
        version = LibvirtVersion(mock.Mock(side_effect=answers))
        self.assertEqual([None, 10000000, 10000000, 10001000], [version() for _ in answers])
