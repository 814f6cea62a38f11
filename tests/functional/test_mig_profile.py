# SPDX-License-Identifier: Apache-2.0
"""[gpu]mig_profile: cards that nova-compute divides when it starts."""

from __future__ import annotations

import fixtures

from nova_gpu.core import exception
from tests.fixtures import hosts
from tests.functional import alone, mig
from tests.functional.mig import CARDS, FIRST, LARGE, SECOND, SMALL, WHOLE, nodes_of

SLOTS = {SMALL: (7, 8, 9), LARGE: (1, 2)}


class ProfileTest(alone.Alone, mig.MIGServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.busy: set[str] = set()
        self.made: list[str] = []
        # What has NVML divide a card is a process of its own: tests/unit/host/mig.
        self.useFixture(
            fixtures.MonkeyPatch("nova_gpu.privsep.vgpu.make_mig_instances", self._make)
        )

    def prepare(self, host: hosts.Host) -> None:
        self.told = dict.fromkeys(CARDS)

    def _make(self, card: str, profile: str) -> int:
        if self.told[card]:
            return 0
        if card in self.busy:
            raise exception.DeviceUnavailable(card, "somebody uses it", "see who does")
        self.made.append(f"{card} {profile}")
        self.divide(card, [(each, 0, profile) for each in SLOTS[profile]])
        return len(SLOTS[profile])

    def test_those_that_no_instance_has_and_once(self) -> None:
        self.start_host()
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [FIRST])
        self.busy.add(WHOLE)
        self.flags(mig_profile=[f"10de:2335={SMALL}", f"{SECOND}={LARGE}"], group="gpu")
        self.restart_host("host1")
        self.period()
        others = [f"{card} {SMALL}" for card in CARDS if card not in (FIRST, SECOND, WHOLE)]
        self.assertCountEqual([f"{SECOND} {LARGE}", *others], self.made)
        self.assertIn(f"Failed to divide GPU {WHOLE}, will retry", self.log())
        self.assertEqual(1, self.log().count(f"Divided GPU {SECOND} into 2 MIG instances {LARGE}"))
        self.assertEqual(len(self.made), self.log().count("Divided GPU "))
        self.assertEqual((15, 0, 0), self.vgpus())
        self.assertEqual((2, 0, 0), self.vgpus(LARGE))
        self.assertGPUs(whole, [FIRST])
        part = self.boot(self.of_type(LARGE))
        self.assertInstances(part, [mig.slot(SECOND, 1, 0, LARGE)], nodes_of(1, 1))
        self.leaves = {"reserved": "the cards were ones of the whole ones"}
        self.boot(self.gpu_flavor(1), expected_state="ERROR")  # nor is what is to be divided whole

        self._delete_server(whole)
        self.restart_host("host1")
        self.period()
        self.assertEqual(f"{FIRST} {SMALL}", self.made[-1])
        self.assertEqual(len(CARDS) - 1, len(self.made))
        # Of those that were divided before no more is said.
        self.assertEqual(len(self.made), self.log().count("Divided GPU "))
        self.assertEqual((18, 0, 0), self.vgpus())
        self.assertEqual((2, 0, 1), self.vgpus(LARGE))
