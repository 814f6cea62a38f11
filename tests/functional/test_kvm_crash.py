# SPDX-License-Identifier: Apache-2.0
"""nova-compute dies while the host's cards change hands. The kernel is a stand-in.

Death is an exception that nothing in Nova catches, and a new service after it. It unwinds what it
passes through, so that a claim is given up in time: where nova-compute is really killed is
``tests.crash``, which has no PCI cards.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import fixtures
from oslo_utils import importutils

from tests.functional import kvm
from tests.functional.kvm import CARD, GUESTS, HOSTS, OTHER

_BINDINGS = "nova_gpu.virt.delivery.binding.Bindings"
_HOST = "nova.virt.libvirt.host.Host"
_DRIVER = "nova.virt.libvirt.driver.LibvirtDriver"

_STARTING = (f"{_BINDINGS}.give_to_guests", f"{_HOST}.write_instance_config")
_ENDING = (f"{_DRIVER}._undefine_domain", f"{_BINDINGS}._give_back")


class _Death(BaseException):
    """Of the process"""


class KVMCrashTest(kvm.KVMServersTestBase):
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.start_driving_host()
        self.neighbour = self.boot(self.gpu_flavor(1))
        self.assertGPUs(self.neighbour, [CARD])
        self._flavor = self.gpu_flavor(1)

    def assertStatus(self, server: dict[str, Any], status: str) -> None:
        self.assertEqual(status, self.api.get_server(server["id"])["status"])

    def assertDrivers(self, other: list[str], point: str) -> None:
        self.assertEqual(GUESTS, self.drivers(CARD), f"the neighbour's, after {point}")
        self.assertEqual(other, self.drivers(OTHER), f"after {point}")

    def _dies(self, function: str, after: bool, work: Callable[..., Any], *arguments: Any) -> Any:
        """Does *work* in whose course the service dies before or after *function*, and restarts."""
        died = threading.Event()
        owner, _, name = function.rpartition(".")
        original = getattr(importutils.import_class(owner), name)

        def dying(*args: Any, **kwargs: Any) -> Any:
            if after and not died.is_set():
                original(*args, **kwargs)
            died.set()
            raise _Death

        with fixtures.MonkeyPatch(function, dying):
            answer = work(*arguments)
            self.assertTrue(died.wait(200), f"{function} was not reached")
            compute = self.computes["host1"]
            # Nova 2026.2 waits for them when it is stopped in order.
            getattr(compute.manager, "_in_progress_tasks", {}).clear()
            host = compute.manager.driver._host
            # Nova up to 2025.1 has no handler of its own for events.
            getattr(host, "_event_handler", host)._lifecycle_event_handler = None
        self.restart_host("host1")
        self.period()
        return answer

    def _server(self) -> dict[str, Any]:
        body = self._build_server(flavor_id=self._flavor, networks="none")
        server: dict[str, Any] = self.api.post_server({"server": body})
        return server

    def assertNothingLeft(self, point: str) -> None:
        self.assertDrivers(HOSTS, point)
        self.assertInventory(total=2, used=1)
        self.assertEqual([CARD], self.former(), f"records after {point}")
        left = [each.UUIDString() for each in self._domains("host1")]
        self.assertEqual([self.neighbour["id"]], left)

    def test_while_a_guest_starts(self) -> None:
        """Before there is a domain: past that the claim, given up in time, would be too much."""
        for function, after in (
            (_STARTING[0], False),
            (_STARTING[0], True),
            (_STARTING[1], False),
        ):
            point = f"{'after' if after else 'before'} {function}"
            server = self._dies(function, after, self._server)
            # It has no fault: nobody was there to write one.
            self._wait_for_assert(functools.partial(self.assertStatus, server, "ERROR"))
            self._delete_server(server)
            self.period()
            self.assertNothingLeft(point)
        self.assertGPUs(self.boot(self._flavor), [OTHER])

    def test_while_a_guest_is_deleted(self) -> None:
        for function in _ENDING:
            for after in (False, True):
                point = f"{'after' if after else 'before'} {function}"
                server = self.boot(self._flavor)
                self.assertGPUs(server, [OTHER])
                self._dies(function, after, self.api.delete_server, server["id"])
                self._wait_until_deleted(server)
                self.period()
                self.assertNothingLeft(point)
