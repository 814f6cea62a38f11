# SPDX-License-Identifier: Apache-2.0
"""A card that breaks and is repaired while a guest has the one beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lab.vm import cards
from nova_gpu.core.unavailability import Repair
from nova_gpu_cardlife.core.ladder import State
from tests.cloud import wire
from tests.vfio import base, cloud, host, place

FIRST, SECOND = cards.WHOLE
_MOST_PERIODS = 30
_PROGRAM, _TESTED = "/usr/local/sbin/test-gpu", "/run/lab/tested"
_WORDS = """#!/bin/sh
driver=$(readlink "/sys/bus/pci/devices/$1/driver")
echo "$1 ${driver##*/}" >>/run/lab/tested
if [ -s "/run/lab/broken-$1" ]; then
    echo '{"overall_severity": "CRITICAL", "summary": "it is broken"}'
    exit 1
fi
echo '{"overall_severity": "PASS"}'
"""
_UP = [
    (State.WAITING, Repair.RESET),
    (State.DOING, Repair.RESET),
    (State.TESTING, Repair.RESET),
    (State.WAITING, Repair.BUS_RESET),
    (State.DOING, Repair.BUS_RESET),
    (State.TESTING, Repair.BUS_RESET),
    (State.OVER, Repair.BUS_RESET),
]


class CardLifeTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.write(_PROGRAM, _WORDS, 0o755)
        self.host.write(_TESTED, "")
        self.mend_card()
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        # FIRST has a guest throughout.
        self.neighbour = self.cloud.boot_with(1)
        self.assertEqual(self.host.functions(FIRST), self.hostdevs(self.neighbour))
        self.seen_in(self.neighbour)
        self.before = self.process()
        self.addCleanup(self._switch_off)
        self.cloud.further = {
            wire.HOST: (
                *("[gpu]", f"card_test = {_PROGRAM}"),
                *("card_repair = reset,bus-reset", "card_test_leave_free = 0"),
                *("health_interval = 1", "clean_timeout = 20"),
            )
        }
        self.cloud.restart_compute()

    def remote(self, module: str) -> cloud.Remote:
        return cloud.Remote(self.cloud.vms[wire.HOST].ask, module)

    def _switch_off(self) -> None:
        self.cloud.further = {}
        self.cloud.kill_compute()
        for name in ("gpu-tests", "gpu-repairs"):
            self.remote("shutil").rmtree(str(place.STATE / name), True)
        self.cloud.start_compute()

    def process(self) -> tuple[int, str, dict[str, str]]:
        """Return QEMU's of the neighbour: pid, when it was started, and its files of VFIO."""
        pid, started, files = self.host.guest_process(self.cloud.domain(self.neighbour))
        return pid, started, files

    def runs(self) -> list[str]:
        """Return the cards that the program has tested, each with its driver."""
        return str(self.host.read(_TESTED)).splitlines()

    def repair(self) -> tuple[State, Repair] | None:
        text = self.host.read(str(place.STATE / "gpu-repairs" / f"{SECOND}.json"))
        record = json.loads(text) if text else None
        return (State(record["state"]), Repair(record["step"])) if record else None

    def is_offered(self) -> bool:
        """Whether SECOND is, by Placement"""
        return self.free(cards.PRODUCT_ID) == len(cards.WHOLE)

    def ask_for_test(self) -> None:
        status, output = self.cloud.command("test", SECOND)
        self.assertEqual(0, status, output)

    def until_offered(self) -> None:
        for _ in range(_MOST_PERIODS):
            self.cloud._run_periodics()
            if self.is_offered():
                return
        self.fail(f"{SECOND} is not offered: {self.host.listed()}")

    def break_card(self) -> None:
        self.host.write(f"/run/lab/broken-{SECOND}", "it is")

    def mend_card(self) -> None:
        self.host.write(f"/run/lab/broken-{SECOND}", "")

    def states(self) -> Iterator[tuple[State, Repair]]:
        """Run periods, and give each new state of the repair, until it is over."""
        last = self.repair()
        for _ in range(_MOST_PERIODS):
            self.cloud._run_periodics()
            if (now := self.repair()) != last and now:
                last = now
                yield now
                if now[0] is State.OVER:
                    return
            if now and now[0] is not State.TESTING:
                self.assertFalse(self.is_offered(), now)
        self.fail(f"the repair of {SECOND} does not end: {last}, {self.host.listed()}")

    def assertNeighbourKeepsItsCard(self) -> None:
        self.assertEqual(self.before, self.process())
        self.assertEqual(self.host.functions(FIRST), self.hostdevs(self.neighbour))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(FIRST))
        self.assertNotIn(f"{FIRST} ", "\n".join(self.runs()))

    def test_killed_in_each_state(self) -> None:
        self.break_card()
        self.ask_for_test()
        seen = []
        for state in self.states():
            seen.append(state)
            if state == (State.DOING, Repair.BUS_RESET):
                self.mend_card()
            self.cloud.restart_compute()
        self.assertEqual(_UP, seen)
        self.until_offered()
        self.assertNeighbourKeepsItsCard()
