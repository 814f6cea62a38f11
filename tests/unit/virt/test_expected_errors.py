# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
import testtools
from nova import exception as nova_exception
from oslo_messaging.rpc import server as rpc_server

from nova_gpu.virt import expected_errors


class LogTest(testtools.TestCase):
    """What oslo.messaging logs where a method of Nova's manager raises."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(format="%(levelname)s %(message)s"))
        self.addCleanup(rpc_server.LOG.filters.clear)
        expected_errors.log_in_a_line()
        expected_errors.log_in_a_line()  # each service of a process does

    def raised(self, error: Exception) -> None:
        try:
            raise error
        except Exception:
            rpc_server.LOG.exception("Exception during message handling")

    def test_a_refusal_is_a_line_and_anything_else_has_its_traceback(self) -> None:
        error = nova_exception.InstanceSuspendFailure(reason="no state can be saved")
        self.raised(expected_errors.expected(error))
        message = "INFO Refused: Failed to suspend instance: no state can be saved\n"
        self.assertEqual(message, self.log.output)
        self.raised(nova_exception.InstanceSuspendFailure(reason="libvirt says no"))
        rpc_server.LOG.error("A thing without an exception")
        self.assertIn("Traceback (most recent call last)", self.log.output)
        self.assertIn("ERROR A thing without", self.log.output)
