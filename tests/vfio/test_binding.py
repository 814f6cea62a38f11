# SPDX-License-Identifier: Apache-2.0
"""The privileged functions that take a card from the host's drivers and give it back."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import unittest
from collections.abc import Iterator
from unittest import mock

import nova.privsep
from nova.conf import CONF
from oslo_config import fixture as config_fixture

import nova_gpu.privsep.vfio
from nova_gpu.core import exception
from tests.vfio import base, host
from tools.vfiolab import cards


class BindingTest(unittest.TestCase):
    def setUp(self) -> None:
        self.card = cards.WHOLE[1]
        # The tests are root and may do everything.
        self.enterContext(mock.patch.object(nova.privsep.sys_admin_pctxt, "client_mode", False))
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(config_fixture.Config(CONF)).config(state_path=folder)

    def test_there_and_back(self) -> None:
        for _ in range(2):
            for _ in range(2):  # done already: nothing to do
                nova_gpu.privsep.vfio.give_to_guests(self.card)
                self.assertEqual(base.VFIO_DRIVERS, host.drivers(self.card))
            for _ in range(2):
                nova_gpu.privsep.vfio.give_to_host(self.card)
                self.assertEqual(base.HOST_DRIVERS, host.drivers(self.card))
            overrides = list(map(host.override, host.functions(self.card)))
            self.assertEqual([None, None], overrides)

    def test_card_without_a_driver(self) -> None:
        host.unbind(self.card)
        self.addCleanup(host.probe, self.card)
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.assertEqual(base.VFIO_DRIVERS, host.drivers(self.card))
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual([None, base.HOST_DRIVERS[1]], host.drivers(self.card))

    def test_display_the_host_booted_on(self) -> None:
        before = host.drivers(cards.OTHER)
        with self.assertRaisesRegex(exception.BindingFailed, "booted on"):
            nova_gpu.privsep.vfio.give_to_guests(cards.OTHER)
        self.assertEqual(before, host.drivers(cards.OTHER))

    def test_not_while_a_process_has_it(self) -> None:
        """The kernel would wait for that process, for ever."""
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        with self._group_open(), self.assertRaises(exception.BindingFailed) as raised:
            nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertIn(str(os.getpid()), str(raised.exception))
        self.assertEqual(base.VFIO_DRIVERS, host.drivers(self.card))
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual(base.HOST_DRIVERS, host.drivers(self.card))

    @contextlib.contextmanager
    def _group_open(self) -> Iterator[None]:
        node = pathlib.Path("/dev/vfio", str(host.group(self.card)))
        group = os.open(node, os.O_RDWR)
        try:
            yield
        finally:
            os.close(group)
