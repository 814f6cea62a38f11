# SPDX-License-Identifier: Apache-2.0
"""A card that is divided by its virtual functions alone: from the flavor to QEMU, and back.

QEMU's only device that has such functions is a disk: sysfs says of it what it says of Intel's card,
and its guests see what it is.
"""

from __future__ import annotations

import contextlib

from lab.vm import cards
from tests.vfio import base

# Intel's Flex 170
PRETENDED = {"class": "0x038000", "vendor": "0x8086", "device": "0x56c0"}
SEEN = "1b36:0010 010802"


class FunctionsTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.assertEqual([], self.host.parts(cards.DIVIDED))
        self.pretend(PRETENDED, cards.DIVIDED)
        self.addCleanup(self.host.without_parts, cards.DIVIDED)
        self.addCleanup(self.cloud._delete_everything)
        # With [gpu]virtual_functions, which now finds a card.
        self.cloud.restart_compute()
        self.functions = self.host.parts(cards.DIVIDED)

    def drivers(self) -> list[str | None]:
        return [self.host.driver(function) for function in self.functions]

    def wait_until_released(self) -> None:
        """Wait until libvirt has unbound the functions; fail with their drivers."""
        with contextlib.suppress(AssertionError):
            self.cloud.wait_for("no driver has them", lambda: self.drivers() == [None, None])
        log = self.host.virsh("list", "--all") + self.host.kernel_log()
        self.assertEqual([None, None], self.drivers(), log)

    def test_one_each(self) -> None:
        one = self.cloud.flavor(vgpus="= 1", vgpu_type="s== vf")
        first, second = self.cloud.boot(one), self.cloud.boot(one)
        self.assertEqual(self.functions, sorted([*self.hostdevs(first), *self.hostdevs(second)]))
        self.assertEqual(["vfio-pci", "vfio-pci"], self.drivers())
        self.cloud.delete(first)
        self.cloud.delete(second)
        self.wait_until_released()

    def test_both_in_one(self) -> None:
        self.assertEqual(2, len(self.functions))
        self.assertEqual([None, None], self.drivers())
        both = self.cloud.boot(self.cloud.flavor(vgpus="= 2", vgpu_type="s== vf"))
        self.assertEqual(self.functions, self.hostdevs(both))
        self.seen_in(both)
        self.assertEqual(2, self.cloud.console(both).count(SEEN))
        self.cloud.reboot(both, "HARD")
        self.assertEqual(self.functions, self.hostdevs(both))
        self.cloud.delete(both)
        self.wait_until_released()
