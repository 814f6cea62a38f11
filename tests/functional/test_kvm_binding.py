# SPDX-License-Identifier: Apache-2.0
"""Cards that hosts drive until a guest needs them. The kernels are stand-ins; see their fixture.

The privileged functions and their child processes are the real ones. The cards of two hosts have
the same addresses. Death of nova-compute is an exception that nothing in Nova catches, and a new
service after it: where it is really killed is ``tests.crash``, which has no PCI cards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from oslo_utils import importutils

from tests.functional import kvm
from tests.functional.base import Server
from tests.functional.kvm import CARD, GUESTS, HOSTS, OTHER

# What Nova does between the claim and the start of the guest
_PREPARED = "nova.compute.manager.ComputeManager._prep_block_device"
_GIVE = "nova_gpu.virt.delivery.binding.Bindings.give_to_guests"
_REBIND = "nova_gpu.virt.delivery.binding.Bindings._rebind"
_UNDEFINE = "nova.virt.libvirt.driver.LibvirtDriver._undefine_domain"


class BindingTestBase(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.kernels = {"host1": self.start_driving_host("host1")}
        self.server = self.boot(self.gpu_flavor(1))

    def assertWithGuests(self, *cards: str, host: str = "host1") -> None:
        """These and no others, and of those no others something is written down."""
        for address in (CARD, OTHER):
            expected = GUESTS if address in cards else HOSTS
            self.assertEqual(expected, self.drivers(address, host), f"{address} of {host}")
        self.assertEqual(sorted(cards), self.former(host))


class HostTest(BindingTestBase):
    def prepared(self, *args: object) -> dict[str, list[object]]:
        self._wait_for_assert(lambda: self.assertWithGuests(CARD, OTHER))
        return {"block_device_mapping": []}

    def test_bound_while_nova_prepares_the_rest(self) -> None:
        """And the host has it back where Nova cannot prepare that."""

        def fail(*args: object) -> None:
            self.prepared()
            raise ValueError

        with mock.patch(_PREPARED, side_effect=fail):
            self.assertIn("prepping block device", self.boot_refused(self.gpu_flavor(1)))
        self.period()
        self.assertWithGuests(CARD)
        with mock.patch(_PREPARED, side_effect=self.prepared) as prepared:
            server = self.boot(self.gpu_flavor(1))
        prepared.assert_called_once()
        self.assertGPUs(server, [OTHER])

    def test_card_that_the_host_does_not_take_back(self) -> None:
        """Its instance can be deleted all the same, the next one has it, and it is tried again."""
        self.kernels["host1"].refused.add(f"{CARD} nouveau")
        self._delete_server(self.server)
        self.assertIn(f"Failed to return GPU {CARD} to the host's drivers", self.log())
        self.assertInventory(total=2, used=0)
        server = self.boot(self.gpu_flavor(1))
        self.assertGPUs(server, [CARD])
        self.assertWithGuests(CARD)
        self._delete_server(server)
        self.kernels["host1"].refused.clear()
        self.period()
        self.assertWithGuests()

    def test_host_boot_takes_the_card_of_a_stopped_guest_again(self) -> None:
        self._stop_server(self.server)
        for function, driver in zip((CARD, CARD.replace(".0", ".1")), HOSTS, strict=True):
            self.hosts["host1"].bind(function, driver)
        self.kernels["host1"].boot("00000000-0000-4000-8000-000000000001")
        self.restart_host("host1")
        self.assertWithGuests(CARD)


class MovesTest(BindingTestBase):
    """At host2 another instance has the card of the same address as the instance's at host1."""

    def setUp(self) -> None:
        super().setUp()
        self.kernels["host2"] = self.start_driving_host("host2")
        self.stranger = self.boot(self.gpu_flavor(1), host="host2")
        self.assertWithGuests(CARD, host="host1")
        self.assertWithGuests(CARD, host="host2")

    def _move(self) -> None:
        """Until it is confirmed the old card is the instance's as well, whoever looks."""
        self.server = self._migrate_server(self.server)
        for _ in range(2):
            self.assertWithGuests(CARD, host="host1")
            self.assertWithGuests(CARD, OTHER, host="host2")
            self.periods()
        self.restart_host("host1")
        self.assertWithGuests(CARD, host="host1")

    def test_revert_and_confirm(self) -> None:
        self._move()
        bound = [line for line in self.kernels["host1"].done if line.startswith(CARD)]
        self._revert_resize(self.server)
        self.assertWithGuests(CARD, host="host2")
        self.assertGPUs(self.server, [CARD], "host1")
        self.assertWithGuests(CARD, host="host1")
        again = [line for line in self.kernels["host1"].done if line.startswith(CARD)]
        self.assertEqual(bound, again)
        self._move()
        self.confirm(self.server, source="host1")
        self.assertWithGuests(host="host1")
        self.assertGPUs(self.server, [OTHER], "host2")
        self.assertWithGuests(CARD, OTHER, host="host2")
        # With the instances their cards go back, and the stranger's never did before.
        self.assertGPUs(self.stranger, [CARD], "host2")
        done = self.kernels["host2"].done
        drivers = [
            line.split()[1] for line in done if line.startswith(CARD[:-1]) and line[-1] != "-"
        ]
        self.assertEqual(["vfio-pci"] * 2, drivers)
        for server in (self.server, self.stranger):
            self._delete_server(server)
        for host in ("host1", "host2"):
            self.assertWithGuests(host=host)
            self.assertInventory(total=2, used=0, host=host)


class _Death(BaseException):
    """Of the process"""


class CastTest(BindingTestBase):
    # A build that is waited for could not be deleted meanwhile, and no death of its host seen.
    CAST_AS_CALL = False

    def build(self) -> Server:
        body = self._build_server(flavor_id=self.gpu_flavor(1), networks="none")
        server: Server = self.api.post_server({"server": body})
        return server

    def assertNothingLeft(self, point: str) -> None:
        self.assertWithGuests(CARD)
        self.assertInventory(total=2, used=1)
        left = [domain.UUIDString() for domain in self._domains("host1")]
        self.assertEqual([self.server["id"]], left, point)

    def test_card_goes_back_when_the_build_notices(self) -> None:
        driver = self.computes["host1"].driver
        create = driver._create_guest_with_network
        building, go_on = threading.Event(), threading.Event()

        def wait(*args: object, **kwargs: object) -> object:
            building.set()
            self.assertTrue(go_on.wait(200))
            return create(*args, **kwargs)

        driver._create_guest_with_network = wait
        self.addCleanup(go_on.set)
        server = self.build()
        self.assertTrue(building.wait(200))
        self.assertWithGuests(CARD, OTHER)
        self.api.delete_server(server["id"])
        go_on.set()
        self._wait_until_deleted(server)
        self._wait_for_assert(lambda: self.assertWithGuests(CARD))
        self.assertNothingLeft("a delete")

    def _dies(self, function: str, work: Callable[..., Any], *arguments: Any, after: bool) -> Any:
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

    def test_nova_compute_dies(self) -> None:
        server = self._dies(_GIVE, self.build, after=True)
        # It has no fault, for which Nova's helper waits: nobody was there to write one.
        self._wait_for_assert(
            lambda: self.assertEqual("ERROR", self.api.get_server(server["id"])["status"])
        )
        self._delete_server(server)
        self.period()
        self.assertNothingLeft("a start")
        for function, after in ((_UNDEFINE, True), (_REBIND, False), (_REBIND, True)):
            server = self.boot(self.gpu_flavor(1))
            self.assertGPUs(server, [OTHER])
            self._dies(function, self.api.delete_server, server["id"], after=after)
            self._wait_until_deleted(server)
            self.period()
            self.assertNothingLeft(f"{function}, {after}")
