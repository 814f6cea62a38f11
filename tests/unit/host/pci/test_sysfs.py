# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib

import fixtures
from oslotest import base

from nova_gpu.host.pci import sysfs
from tests.fixtures import hosts


class TestSysfs(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        host.add_gpu("0000:82:00.0", "10de", "1023", numa_node=None)
        self.device = str(host.devices / "0000:82:00.0")

    def test_attributes(self) -> None:
        self.assertEqual("0x10de", sysfs.attribute(self.device, "vendor"))
        self.assertEqual(0x1023, sysfs.hexadecimal(self.device, "device"))
        self.assertEqual(-1, sysfs.decimal(self.device, "numa_node"))
        self.assertEqual("nvidia", sysfs.link(self.device, "driver"))

    def test_missing(self) -> None:
        self.assertRaises(FileNotFoundError, sysfs.attribute, self.device, "nothing")
        self.assertRaises(FileNotFoundError, sysfs.hexadecimal, self.device, "nothing")
        self.assertIsNone(sysfs.decimal(self.device, "nothing"))
        self.assertIsNone(sysfs.link(self.device, "nothing"))

    def test_senseless(self) -> None:
        self.assertRaises(ValueError, sysfs.hexadecimal, self.device, "driver_override")
        self.assertIsNone(sysfs.decimal(self.device, "vendor"))

    def test_no_descriptor_stays_open(self) -> None:
        before = os.listdir("/proc/self/fd")
        for name in ("vendor", "nothing", "driver"):
            try:
                sysfs.attribute(self.device, name)
            except OSError:
                continue
        self.assertEqual(before, os.listdir("/proc/self/fd"))
