# SPDX-License-Identifier: Apache-2.0
"""More instances at once than there is room for, of whole cards and of each kind of vGPU."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import ClassVar

from tests.functional import base, divided, mig, profiled, test_plain_functions
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, slots


class Many:
    """What a kind says: how many instances with one each are asked for, and all that there is."""

    CAST_AS_CALL = False
    ASKED: ClassVar[int]
    ALL: ClassVar[Sequence[str]]

    def wanted(self) -> str:
        """A flavor with one"""
        raise NotImplementedError

    def held(self, server: Server) -> list[str]:
        return self.recorded(server)

    def assertMade(self, count: int) -> None:
        self.assertEqual(count, len(self.kernels["host1"].made))

    def test_none_is_shared(self) -> None:
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        if not self.computes:
            self.start_host()
        flavor = self.wanted()
        requests = [
            self._build_server(flavor_id=flavor, networks="none") for _ in range(self.ASKED)
        ]
        with concurrent.futures.ThreadPoolExecutor(self.ASKED) as pool:
            servers = list(pool.map(lambda r: self.api.post_server({"server": r}), requests))
        self._wait_for_assert(lambda: self.assertTrue(self._are_settled(servers)))
        active = [each for each in servers if self._show_server(each)["status"] == "ACTIVE"]
        self.assertEqual(len(self.ALL), len(active))
        held = [slot for server in active for slot in self.held(server)]
        self.assertEqual(sorted(self.ALL), sorted(held))
        self.assertMade(len(self.ALL))
        for server in servers:
            self.api.delete_server(server["id"])
        self._wait_for_assert(lambda: self.assertEqual([], self._servers()))
        self.assertMade(0)

    def _are_settled(self, servers: list[Server]) -> bool:
        return all(self._show_server(each)["status"] in ("ACTIVE", "ERROR") for each in servers)


class CardsTest(Many, base.GPUServersTestBase):
    ASKED = 12
    ALL = base.ALL

    def wanted(self) -> str:
        return self.gpu_flavor(1)

    def held(self, server: Server) -> list[str]:
        held = super().held(server)
        self.assertGPUs(server, held)
        return held

    def assertMade(self, count: int) -> None:
        """None is: Placement counts them, and hears of a deletion after the API has."""
        self._wait_for_assert(lambda: self.assertInventory(used=count))


class MediatedTest(Many, divided.DividedServersTestBase):
    ASKED = 20
    ALL = slots(FIRST, 63, *range(8)) + slots(SECOND, 63, *range(8))

    def wanted(self) -> str:
        return self.of_type(63)


class TypedTest(Many, profiled.ProfiledServersTestBase):
    ASKED = 12
    ALL = profiled.slots(1147, *profiled.FIRST, *profiled.SECOND)

    def wanted(self) -> str:
        return self.of_type(1147)


class PlainTest(Many, test_plain_functions.PlainServersTestBase):
    ASKED = 9
    ALL = test_plain_functions.slots(FIRST, 1, 2, 3) + test_plain_functions.slots(SECOND, 1, 2, 3)

    def wanted(self) -> str:
        return self.flavor(**test_plain_functions.FLAVOR)

    def assertMade(self, count: int) -> None:
        pass  # Nothing is.


class MIGTest(Many, mig.MIGServersTestBase):
    ASKED = 8
    ALL = mig.slots(mig.FIRST, mig.SMALL, 9, 10, 11) + mig.slots(mig.SECOND, mig.SMALL, 9, 10, 11)

    def wanted(self) -> str:
        return self.of_type(mig.SMALL)

    def assertMade(self, count: int) -> None:
        pass  # The operator has.
