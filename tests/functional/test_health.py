# SPDX-License-Identifier: Apache-2.0
"""Cards that fall ill on the bus, while somebody, or nobody, has them."""

from __future__ import annotations

from tests.fixtures import ailments
from tests.functional import alone, base

SICK = base.FIRST_SOCKET[0]


class HealthTest(alone.Alone, base.GPUServersTestBase):
    leaves = {"reserved": "a card that is ill stays so"}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.host = self.hosts["host1"]

    def _report_fatal_errors(self) -> None:
        ailments.count_bus_errors(self.host, SICK)
        self.period()
        ailments.count_bus_errors(self.host, SICK, fatal=1)
        self.period()


class FreeCardTest(HealthTest):
    def test_one_that_does_not_answer(self) -> None:
        ailments.silence(self.host, SICK)
        self.period()
        self.assertInventory(total=8, reserved=1, used=0)
        self.boot_refused(self.gpu_flavor(8))
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        ailments.answer_again(self.host, SICK)
        self.period()
        self.assertInventory(total=8, reserved=0, used=7)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), [SICK])

    def test_one_that_does_not_answer_from_the_start(self) -> None:
        ailments.silence(self.host, SICK)
        self.restart_host("host1")
        self.assertInventory(total=8, reserved=1, used=0)

    def test_one_that_reports_fatal_errors(self) -> None:
        self._report_fatal_errors()
        self.assertInventory(total=8, reserved=1, used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        self.assertGPUs(self.boot(self.flavor()), [])


class AssignedCardTest(HealthTest):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.gpu_flavor(1))
        self.assertGPUs(self.server, [SICK])

    def test_it_stays_the_instances_and_is_nobodys_afterwards(self) -> None:
        self._report_fatal_errors()
        self.assertInventory(total=8, reserved=0, used=1)
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, [SICK])
        self._delete_server(self.server)
        self.period()
        self.assertInventory(total=8, reserved=1, used=0)

    def test_its_instance_does_not_start_with_one_that_does_not_answer(self) -> None:
        ailments.silence(self.host, SICK)
        self.period()
        self.assertInventory(total=8, reserved=0, used=1)
        self._stop_server(self.server)
        (said,) = self.refused({"os-start": None})
        self.assertIn("no longer answers on the PCI bus", said)
        ailments.answer_again(self.host, SICK)
        self.period()
        self._start_server(self.server)
        self.assertGPUs(self.server, [SICK])
