# SPDX-License-Identifier: Apache-2.0
"""Cards of which NVIDIA's driver reports fatal Xids in the kernel's log."""

from __future__ import annotations

from typing import ClassVar

from nova.tests import fixtures as nova_fixtures

from nova_gpu.core import health_verdict
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine
from tests.fixtures import ailments, kernel
from tests.functional import alone, base, mig
from tests.functional.mig import FIRST, SMALL, nodes_of, slot

SICK = base.FIRST_SOCKET[0]


class Xids:
    """Each is of :attr:`CARD`, and a period reads it."""

    CARD: ClassVar[str]

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(nova_fixtures.PrivsepFixture())
        self.flags(fatal_xids=list(health_verdict.FATAL_XIDS), health_interval=1, group="gpu")
        self.start_host()
        self.host = self.hosts["host1"]
        self.boot_kernel(kernel.BOOT_ID)

    def boot_kernel(self, boot_id: str = "another-boot") -> None:
        """Its log begins anew."""
        kernel.boot(self.host, boot_id)
        self.kernel_log = ailments.KernelLog(self.host)

    def report(self, code: int, instance: str = "") -> None:
        self.kernel_log.xid(self.CARD, code, instance=instance)
        self.next_period()

    def next_period(self) -> None:
        """One in which the log is read"""
        self.computes["host1"].driver._gpus.periods.cards.xids._read_at = 0.0
        self.period()


class XidsTest(Xids, alone.Alone, base.GPUServersTestBase):
    CARD = SICK

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.state() / "gpu-quarantine"

    def boot_host(self) -> None:
        self.boot_kernel()
        self.restart_host("host1")

    def test_a_free_card_is_kept_until_it_is_released(self) -> None:
        self.report(79)
        self.assertInventory(total=8, reserved=1, used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])
        self.boot_host()
        self.next_period()
        self.assertInventory(total=8, reserved=1, used=7)
        quarantine.release(self.folder, PciAddress.parse(SICK))
        self.next_period()
        self.assertInventory(total=8, reserved=0, used=7)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), [SICK])


class MIGXidsTest(Xids, alone.Alone, mig.MIGServersTestBase):
    """Some are an instance's alone, some its card's."""

    CARD = FIRST

    def test_what_is_contained_withholds_the_instance(self) -> None:
        self.report(94, "GPU-I:09 GPU-CI:00")
        self.assertEqual((6, 1, 0), self.vgpus())
        self.assertIn(f"New instances do not get MIG instance 9/0 of GPU {FIRST}", self.log())
        other = self.boot(self.of_type(SMALL))
        self.assertInstances(other, [slot(FIRST, 10, 0, SMALL)], nodes_of(0, 10))
        self.restart_host("host1")
        self.next_period()
        self.assertEqual((6, 1, 1), self.vgpus())
        self.boot_kernel()
        self.next_period()
        self.assertEqual((6, 0, 1), self.vgpus())

    def test_what_is_not_is_the_cards(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "nobody has released the card")
        self.report(95, "GPU-I:09 GPU-CI:00")
        self.assertEqual((6, 3, 0), self.vgpus())
        self.assertIn("Xid 95 of MIG instance 9/0", self.log())
