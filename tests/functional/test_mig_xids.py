# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver reports of MIG instances: some is theirs alone, some their card's."""

from __future__ import annotations

from tests.functional import alone, mig, test_xids
from tests.functional.mig import FIRST, LAYOUT, SMALL, nodes_of, slot


class MIGXidsTest(test_xids.Xids, alone.Alone, mig.MIGServersTestBase):
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

    def test_until_it_is_made_anew(self) -> None:
        self.report(94, "GPU-I:09")
        self.assertEqual((6, 1, 0), self.vgpus())
        self.divide(FIRST, [each for each in LAYOUT if each[0] != 9])
        self.period()
        self.divide(FIRST, LAYOUT)
        self.period()
        self.assertEqual((6, 0, 0), self.vgpus())

    def test_who_has_it_keeps_it(self) -> None:
        self.leaves = {"reserved": "nobody has made the instance anew"}
        server = self.boot(self.of_type(SMALL))
        self.report(94, "GPU-I:09 GPU-CI:00")
        self.assertEqual((6, 0, 1), self.vgpus())
        self._reboot_server(server, hard=True)
        self.assertInstances(server, [slot(FIRST, 9, 0, SMALL)], nodes_of(0, 9))
        self._delete_server(server)
        self.period()
        self.assertEqual((6, 1, 0), self.vgpus())

    def test_what_is_not_is_the_cards(self) -> None:
        self.leaves = dict.fromkeys(("quarantine", "reserved"), "nobody has released the card")
        self.report(95, "GPU-I:09 GPU-CI:00")
        self.assertEqual((6, 3, 0), self.vgpus())
        self.assertIn("Xid 95 of MIG instance 9/0", self.log())

    def test_what_a_program_brings_about_changes_nothing(self) -> None:
        self.report(31, "GPU-I:09 GPU-CI:00")
        self.assertEqual((6, 0, 0), self.vgpus())
