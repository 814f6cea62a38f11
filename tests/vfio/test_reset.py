# SPDX-License-Identifier: Apache-2.0
"""The reset of a card between two guests, by a real kernel."""

from __future__ import annotations

import errno
import pathlib
import tempfile
import unittest
from unittest import mock

import nova.privsep
from nova.conf import CONF
from oslo_config import fixture as config_fixture

import nova_gpu.privsep.cleaning
import nova_gpu.privsep.vfio
from lab.vm import cards
from nova_gpu.core import exception
from tests.vfio import host

_DEVICES = pathlib.Path("/sys/bus/pci/devices")


class ResetTest(unittest.TestCase):
    def setUp(self) -> None:
        self.card = cards.WHOLE[1]
        # The tests are root and may do everything.
        self.enterContext(mock.patch.object(nova.privsep.sys_admin_pctxt, "client_mode", False))
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(config_fixture.Config(CONF)).config(state_path=folder)
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.addCleanup(self._give_back)

    def _give_back(self) -> None:
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))

    def test_file_that_cannot_work(self) -> None:
        """The kernel lists the method although it refuses it for a card of two functions."""
        function = _DEVICES / self.card
        self.assertEqual("bus", (function / "reset_method").read_text().strip())
        with self.assertRaises(OSError) as caught:
            (function / "reset").write_text("1")
        self.assertEqual(errno.ENOTTY, caught.exception.errno)

    def test_with_its_bus(self) -> None:
        for _ in range(2):
            nova_gpu.privsep.cleaning.reset(self.card)
        self.assertEqual(host.VFIO_DRIVERS, host.drivers(self.card))

    def test_not_what_the_host_has(self) -> None:
        """Nothing is reset that is not all with VFIO."""
        nova_gpu.privsep.vfio.give_to_host(self.card)
        with self.assertRaisesRegex(exception.NotClean, "the reset of its bus by VFIO"):
            nova_gpu.privsep.cleaning.reset(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))
