# SPDX-License-Identifier: Apache-2.0
"""The privileged functions that take a card from the host's drivers, reset and return it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import nova.privsep
from nova.conf import CONF
from oslo_config import fixture as config_fixture

import nova_gpu.privsep.cleaning
import nova_gpu.privsep.vfio
from lab.vm import cards
from nova_gpu.cmd import host_check
from nova_gpu.core import exception
from nova_gpu.virt.inventory import discovery
from tests.vfio import host

# What hangs ends never; what does not may take its time on a busy machine.
_BUSY_S, _GENEROUS_S = 15, 300
_SET_MASTER = 0x641E  # DRM_IOCTL_SET_MASTER, of the kernel's include/uapi/drm/drm.h
_DOCUMENTED = pathlib.Path(__file__).parents[2] / "doc/source/admin/host-check"


class _CardTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.card = cards.WHOLE[1]
        # The tests are root and may do everything.
        self.enterContext(mock.patch.object(nova.privsep.sys_admin_pctxt, "client_mode", False))
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.config = self.enterContext(config_fixture.Config(CONF)).config
        self.config(state_path=folder)


class BindingTest(_CardTestCase):
    def test_there_and_back(self) -> None:
        for _ in range(2):
            for _ in range(2):  # done already: nothing to do
                nova_gpu.privsep.vfio.give_to_guests(self.card)
                self.assertEqual(host.VFIO_DRIVERS, host.drivers(self.card))
            for _ in range(2):
                nova_gpu.privsep.vfio.give_to_host(self.card)
                self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))
            self.assertEqual([None, None], host.overrides(self.card))

    def test_what_the_operator_wants_to_drive_it(self) -> None:
        first, _ = host.functions(self.card)
        host.override_by(first, host.HOST_DRIVERS[0])
        self.addCleanup(host.override_by, first, "")
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.assertEqual(host.VFIO_DRIVERS, host.overrides(self.card))
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))
        self.assertEqual([host.HOST_DRIVERS[0], None], host.overrides(self.card))

    def test_card_without_a_driver(self) -> None:
        host.unbind(self.card)
        self.addCleanup(host.probe, self.card)
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.assertEqual(host.VFIO_DRIVERS, host.drivers(self.card))
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual([None, host.HOST_DRIVERS[1]], host.drivers(self.card))

    def test_display_the_host_booted_on(self) -> None:
        before = host.drivers(cards.OTHER)
        with self.assertRaisesRegex(exception.BindingFailed, "booted on"):
            nova_gpu.privsep.vfio.give_to_guests(cards.OTHER)
        self.assertEqual(before, host.drivers(cards.OTHER))

    def test_not_while_a_process_has_it(self) -> None:
        """The kernel would wait for that process, for ever."""
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        with host.group_open(self.card), self.assertRaises(exception.BindingFailed) as raised:
            nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertIn(str(os.getpid()), str(raised.exception))
        self.assertEqual(host.VFIO_DRIVERS, host.drivers(self.card))
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))

    def test_not_while_a_process_has_a_node_of_the_hosts_driver(self) -> None:
        (node,) = pathlib.Path("/dev/dri/by-path").glob(f"pci-{self.card}-card")
        with node.open(), self.assertRaises(exception.BindingFailed) as raised:
            nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.assertIn(f"(pid {os.getpid()})", str(raised.exception))
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))

    def test_what_is_in_flight_of_the_hosts_driver(self) -> None:
        """No process shows that it has a node open: the driver lets go, and the file is dead."""
        (node,) = pathlib.Path("/dev/dri/by-path").glob(f"pci-{self.card}-card")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            with node.open() as file:
                socket.send_fds(ours, [b"."], [file.fileno()])
            nova_gpu.privsep.vfio.give_to_guests(self.card)
            self.assertEqual(host.VFIO_DRIVERS, host.drivers(self.card))
            _, received, *_ = socket.recv_fds(theirs, 1, 1)
        with os.fdopen(*received) as file, self.assertRaises(OSError) as caught:
            fcntl.ioctl(file, _SET_MASTER)
        self.assertEqual(errno.ENODEV, caught.exception.errno)
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))

    def test_a_driver_that_does_not_let_go(self) -> None:
        """A device that was taken from its group is named by no node: nobody can see who has it."""
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.config(group="gpu", bind_timeout=_BUSY_S)
        with host.device_open(self.card):
            for limit in (f" within {_BUSY_S} s", ""):
                started = time.monotonic()
                with self.assertRaises(exception.BindingFailed) as raised:
                    nova_gpu.privsep.vfio.give_to_host(self.card)
                self.assertLess(time.monotonic() - started, _GENEROUS_S)
                step = f"unbinding {self.card} from vfio-pci does not end{limit}"
                self.assertIn(step, str(raised.exception))
            # nova-compute's periodic look at the host does not wait for it either.
            findings = host_check.check(discovery.Discovery(), pathlib.Path("/"))
            self.assertIn(self.card, [finding.address for finding in findings])
        ends = time.monotonic() + _GENEROUS_S
        while host.driver(self.card) is not None:  # what hung goes on
            self.assertLess(time.monotonic(), ends)
            time.sleep(0.1)
        self._until_given_back(ends)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))

    def _until_given_back(self, ends: float) -> None:
        """What was ended dies a moment after the kernel let it go."""
        while True:
            try:
                return nova_gpu.privsep.vfio.give_to_host(self.card)
            except exception.BindingFailed:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.1)


class ResetTest(_CardTestCase):
    def setUp(self) -> None:
        super().setUp()
        nova_gpu.privsep.vfio.give_to_guests(self.card)
        self.addCleanup(self._give_back)

    def _give_back(self) -> None:
        nova_gpu.privsep.vfio.give_to_host(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))

    def test_with_its_bus(self) -> None:
        """The kernel lists its file's method, but refuses it for a card of two functions."""
        function = pathlib.Path("/sys/bus/pci/devices") / self.card
        self.assertEqual("bus", (function / "reset_method").read_text().strip())
        with self.assertRaises(OSError) as caught:
            (function / "reset").write_text("1")
        self.assertEqual(errno.ENOTTY, caught.exception.errno)
        for _ in range(2):
            nova_gpu.privsep.cleaning.reset(self.card)
        self.assertEqual(host.VFIO_DRIVERS, host.drivers(self.card))

    def test_not_what_no_process_shows(self) -> None:
        """It does not pass for a card that no method can reset, either."""
        self.config(group="gpu", require_reset=False, clean_timeout=_BUSY_S)
        for has_it_open in (host.device_open, host.in_flight):
            with (
                has_it_open(self.card),
                self.assertRaisesRegex(exception.NotClean, "is open, in no process"),
            ):
                nova_gpu.privsep.cleaning.reset(self.card)
        nova_gpu.privsep.cleaning.reset(self.card)

    def test_not_what_the_host_has(self) -> None:
        """Nothing is reset that is not all with VFIO."""
        nova_gpu.privsep.vfio.give_to_host(self.card)
        with self.assertRaisesRegex(exception.NotClean, "the reset of its bus by VFIO"):
            nova_gpu.privsep.cleaning.reset(self.card)
        self.assertEqual(host.HOST_DRIVERS, host.drivers(self.card))


class CheckTest(_CardTestCase):
    def test_documentation(self) -> None:
        """What doc/ shows is what ``nova-gpu host check`` prints."""
        self.config(group="gpu", addresses=[self.card])
        self.config(group="libvirt", virt_type="kvm")
        self.assertPrinted("unbound", 0)
        (node,) = pathlib.Path("/dev/dri/by-path").glob(f"pci-{self.card}-card")
        with node.open() as file:
            process = subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()])
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertPrinted("busy", 1)
        process.kill()
        process.communicate()
        for function in host.functions(self.card):
            host.bind(function, "vfio-pci")
            self.addCleanup(host.bind, function, "")
        self.assertPrinted("prepared", 0)

    def assertPrinted(self, name: str, status: int) -> None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = host_check.main(discovery.Discovery(), pathlib.Path("/"), as_json=False)
        self.assertEqual(status, code)
        printed, shown = (
            re.sub(r"\(pid \d+\)", "(pid N)", text)
            for text in (output.getvalue(), (_DOCUMENTED / f"{name}.txt").read_text())
        )
        self.assertEqual(shown, printed)
