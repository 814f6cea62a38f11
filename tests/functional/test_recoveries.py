# SPDX-License-Identifier: Apache-2.0
"""What an operator does after a move has failed, and what the instance has then.

The matrix lets each call of a move fail, and does what Nova's log and its documentation say then.
"""

from __future__ import annotations

from nova.compute import task_states

from tests.fixtures import economy
from tests.functional import kvm
from tests.functional.failing_steps import GUEST, Hosts


class RecoveriesTest(Hosts, kvm.KVMServersTestBase):
    def of(self, gpus: int) -> str:
        return self.gpu_flavor(gpus) if gpus else self.flavor()

    def assertHas(self, gpus: int, host: str) -> None:
        """That many of that host, everywhere the same ones, and nothing is counted elsewhere"""
        self.periods(2)
        got = self.recorded(self.server)
        self.assertEqual(gpus, len(got))
        self.assertGPUs(self.server, got, host)
        for name in self.hosts:
            used = gpus if name == host else 0
            self.assertInventory(used=used, reserved=0, host=name)

    def sweep(self) -> None:
        """An operator removes what stock Nova leaves at the source of a failed move."""
        self._delete_server(self.server)
        for name in self.hosts:
            for domain in self._domains(name):
                domain.undefine()
        self.periods(2)
        for name in self.hosts:
            self.assertInventory(host=name)

    def test_domain_at_the_source(self) -> None:
        """It keeps its GPUs while it runs, or while Nova may yet need it."""
        self.server = self.boot(self.of(1), host="host1")
        before = self.rendered(self.server, "host1")
        self.fails(GUEST, resize={"flavorRef": self.of(2)})
        self.guest(self.server).create()
        self.period("host1")
        self.assertInventory(reserved=1, host="host1")
        self.guest(self.server).destroy()
        for task in (task_states.RESIZE_PREP, None):
            instance = self.instance(self.server)
            instance.task_state = task
            instance.save()
            self.assertEqual(before, self.rendered(self.server, "host1"))
            self.period("host1")
        self.assertEqual([], self.rendered(self.server, "host1"))
        self.assertInventory(host="host1")
        self.assertIn(before[0], self.recorded(self.boot(self.of(self.TOTAL), host="host1")))
        self.hard_reboot()
        self.assertEqual(1, len(self.recorded(self.server)))

    def test_where_the_destination_has_none_free(self) -> None:
        """Nothing is counted for the instance, and its user reads what to do."""
        other = self.boot(self.of(self.TOTAL), host="host2")
        self.server = self.boot(self.of(1), host="host1")
        self.fails(GUEST, resize={"flavorRef": self.of(0)})
        (said,) = self.refused({"reboot": {"type": "HARD"}}, self.server)
        self.assertIn("the instance gave its GPUs back, and gets none now: 1 GPU asked", said)
        self.assertIn("start it when some are free", said)
        economy.wait_for_quiet(5)
        self.assertEqual(([], {}), (self.recorded(self.server), self.allocated(self.server)))
        self._delete_server(other)
        self.hard_reboot()
        self.assertHas(1, "host2")
        self.sweep()
