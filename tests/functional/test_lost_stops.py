# SPDX-License-Identifier: Apache-2.0
"""Each end of a guest, and each note in its domain, lost, without an answer, refused, repeated.

libvirt says of a connection that breaks that it cannot tell, and refuses to end a domain that does
not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import guest as libvirt_guest

from nova_gpu.virt.delivery import container_domain
from tests.fixtures import libvirt
from tests.functional import test_lost_writes, test_reached
from tests.functional.test_lost_writes import Write, failing
from tests.functional.test_reached import NEXT

_WRITES = {
    "end": (libvirt_guest.Guest, "poweroff", lambda *args, **kwargs: True),
    "note": (libvirt.Domain, "setMetadata", lambda *args, **kwargs: True),
}


def _break() -> None:
    text = "Cannot recv data: Connection reset by peer"
    raise libvirt.error(text, fakelibvirt.VIR_ERR_SYSTEM_ERROR)


def _no_answer(write: Write, *args: Any, **kwargs: Any) -> None:
    write(*args, **kwargs)
    _break()


def _lost(write: Write, *args: Any, **kwargs: Any) -> None:
    _break()


def _refused(write: Write, *args: Any, **kwargs: Any) -> None:
    text = "internal error: Some processes refused to die"
    raise libvirt.error(text, fakelibvirt.VIR_ERR_INTERNAL_ERROR)


def _twice(write: Write, *args: Any, **kwargs: Any) -> None:
    write(*args, **kwargs)
    text = "Requested operation is not valid: domain is not running"
    raise libvirt.error(text, fakelibvirt.VIR_ERR_OPERATION_INVALID)


FAILURES = (_no_answer, _lost, _refused, _twice)


class LostStopsTest(test_reached.ShiftedMinors):
    def setUp(self) -> None:
        self.useFixture(fixtures.MockPatchObject(test_lost_writes, "WRITES", _WRITES))
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(container_domain, "libvirt", fakelibvirt))
        self.useFixture(fixtures.MockPatchObject(container_domain, "_PAUSE_S", 0.01))

    def failures(self) -> Iterator[Any]:
        for failure in FAILURES:
            with self.subTest(failure=failure.__name__):
                yield failure

    def running(self) -> list[Any]:
        return list(self.driver._host.list_guests(only_running=True))

    def test_a_guest_that_reaches_others(self) -> None:
        self.flags(stop_guests_that_reach_others=True, group="gpu")
        for failure in self.failures():
            self._swap()
            with failing("end", failure) as ends:
                self.period()
            self.assertEqual(["end"], ends)
            self.period()
            self.assertEqual([], self.running())
            self.assertInventory(reserved=0, used=1)
            other = self.boot(self.gpu_flavor(1))
            self.assertEqual([NEXT], self.recorded(other))
            self._delete_server(other)
            self._stop_server(self.server)  # as Nova does when it sees that
            self._swap_back()
            self._start_server(self.server)
            self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))

    def test_what_a_guest_reaches(self) -> None:
        """A service that comes later knows it."""
        for failure in self.failures():
            self._swap()
            with failing("note", failure) as notes:
                self.period()
            self.assertEqual(["note"], notes)
            self._swap_back()
            self.period()
            self.restart_host("host1")
            self.driver = self.computes["host1"].driver
            self.assertInventory(reserved=1, used=1)
            self._reboot_server(self.server, hard=True)
            self.period()
            self.assertInventory(reserved=0, used=1)

    def test_a_guest_that_is_rebooted(self) -> None:
        """Its processes are waited for before Nova ends it itself."""
        for failure in self.failures():
            with failing("end", failure) as ends:
                self._reboot_server(self.server, hard=True)
            self.assertEqual(["end"], ends)
            self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))
            self.period()
            self.assertInventory(reserved=0, used=1)

    def test_a_guest_that_is_deleted(self) -> None:
        for failure in self.failures():
            server = self.boot(self.gpu_flavor(7))
            with failing("end", failure) as ends:
                self._delete_server(server)
            self.assertEqual(["end"], ends)
            self.period()
            self.assertEqual([self.server["id"]], [guest.uuid for guest in self.running()])
            self.assertInventory(reserved=0, used=1)
