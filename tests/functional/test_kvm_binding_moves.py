# SPDX-License-Identifier: Apache-2.0
"""Cards that two hosts drive until a guest needs them, and instances that move between the two, or
do not.

The cards of both have the same addresses. The kernels are stand-ins; the privileged functions and
their child processes are the real ones.
"""

from __future__ import annotations

import threading

from tests.functional import kvm
from tests.functional.kvm import CARD, GUESTS, HOSTS, OTHER


class MovesTestBase(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.kernels = {"host1": self.start_driving_host("host1")}
        self.server = self.boot(self.gpu_flavor(1))
        self.kernels["host2"] = self.start_driving_host("host2")

    def assertWithGuests(self, *cards: str, host: str) -> None:
        """These and no others, and of those no others something is written down."""
        for address in (CARD, OTHER):
            expected = GUESTS if address in cards else HOSTS
            self.assertEqual(expected, self.drivers(address, host), f"{address} of {host}")
        self.assertEqual(sorted(cards), self.former(host))

    def times_bound(self, host: str) -> int:
        """How often a card was taken from the host's driver there, and how often given back"""
        return sum(each.startswith(CARD) for each in self.kernels[host].done)


class MovesTest(MovesTestBase):
    """At host2 another instance has the card of the same address as the instance's at host1."""

    def setUp(self) -> None:
        super().setUp()
        self.stranger = self.boot(self.gpu_flavor(1), host="host2")
        self.assertWithGuests(CARD, host="host1")
        self.assertWithGuests(CARD, host="host2")

    def assertAtTheEnd(self) -> None:
        """With the instances their cards go back, and the stranger's never did before."""
        self.assertGPUs(self.stranger, [CARD], "host2")
        self.assertEqual(["vfio-pci"] * 2, self._stranger_was_given())
        self._delete_server(self.server)
        self._delete_server(self.stranger)
        for host in ("host1", "host2"):
            self.assertWithGuests(host=host)
            self.assertInventory(total=2, used=0, host=host)

    def _stranger_was_given(self) -> list[str]:
        done = self.kernels["host2"].done
        return [each.split()[1] for each in done if each.startswith(CARD[:-1]) and each[-1] != "-"]

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
        bound = self.times_bound("host1")
        self._revert_resize(self.server)
        self.assertWithGuests(CARD, host="host2")
        self.assertGPUs(self.server, [CARD], "host1")
        self.assertWithGuests(CARD, host="host1")
        self.assertEqual(bound, self.times_bound("host1"))
        self._move()
        self.confirm(self.server, source="host1")
        self.assertWithGuests(host="host1")
        self.assertGPUs(self.server, [OTHER], "host2")
        self.assertWithGuests(CARD, OTHER, host="host2")
        self.assertAtTheEnd()


class CastTest(MovesTestBase):
    # A build that is waited for could not be deleted meanwhile; and a move whose source is called
    # and not cast to takes the source's error for the destination's.
    CAST_AS_CALL = False

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
        server = self._build_server(flavor_id=self.gpu_flavor(1), networks="none", az="nova:host1")
        server = self.api.post_server({"server": server})
        self.assertTrue(building.wait(200))
        self.assertWithGuests(CARD, OTHER, host="host1")
        self.api.delete_server(server["id"])
        go_on.set()
        self._wait_until_deleted(server)
        self._wait_for_assert(lambda: self.assertWithGuests(CARD, host="host1"))
        self.assertInventory(total=2, used=1, host="host1")
