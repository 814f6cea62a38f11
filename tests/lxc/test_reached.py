# SPDX-License-Identifier: Apache-2.0
"""Device nodes that come to lead to another card while their guests run are left to them, and the
cards to nobody new."""

from __future__ import annotations

from tests.lxc import base, place

FIRST, SECOND, THIRD = range(3)


class ReachedTest(base.LXCTestCase):
    def test_two_that_have_changed_cards(self) -> None:
        first, second = self.boot_with(1), self.boot_with(1)
        self.assertGPUs(first, {FIRST})
        self.assertGPUs(second, {SECOND})
        place.exchange(self._host, FIRST, SECOND)
        self._run_periodics()
        for server, other in ((first, second), (second, first)):
            said = f"The guest {server['id']} reaches GPU "
            (line,) = [e for e in str(self.stdlog.logger.output).splitlines() if said in e]
            self.assertIn(f" and which the instances {other['id']} have: ", line)
            # It is as it was: what it has opened it may have where nothing would find it.
            self.assertEqual("ok", self.run_inside(server, "/bin/echo", "-n", "ok").stdout)
        self.assertEqual({FIRST}, self.gpus_inside(first))
        for server in (first, second):
            self._stop_server(server)
        for server in (first, second):
            self._start_server(server)
        self.assertGPUs(first, {SECOND})
        self.assertGPUs(second, {FIRST})
        self._run_periodics()
        self.assertEqual(0, self.reserved())

    def test_a_card_of_nobodys(self) -> None:
        """Also when its nodes lead to its own again: until it has ended."""
        first = self.boot_with(1)
        self.assertGPUs(first, {FIRST})
        place.exchange(self._host, FIRST, SECOND)
        self._run_periodics()
        self.assertEqual(1, self.reserved())
        own = {place.GPUS[each]: place.MINORS[each] for each in (FIRST, SECOND)}
        self._host.renumber(own)
        self.restart_compute()
        self._run_periodics()
        self.assertEqual(1, self.reserved())
        self.assertGPUs(self.boot_with(1), {THIRD})
        self._stop_server(first)
        self._run_periodics()
        self.assertEqual(0, self.reserved())
        self.assertGPUs(self.boot_with(1), {SECOND})

    def test_stopped_where_the_operator_wants_that(self) -> None:
        self.flags(stop_guests_that_reach_others=True, group="gpu")
        first = self.boot_with(1)
        place.exchange(self._host, FIRST, SECOND)
        self._run_periodics()
        self._wait_for_state_change(first, "SHUTOFF")
        self.assertIn(f"Stopped the guest {first['id']}, which reached", self.stdlog.logger.output)
        self._run_periodics()
        self.assertEqual(0, self.reserved())
        self._start_server(first)
        self.assertGPUs(first, {SECOND})
