# SPDX-License-Identifier: Apache-2.0
"""Instances in numbers: at once, and one after another."""

from __future__ import annotations

import os
from concurrent import futures
from typing import Any

from nova import context
from nova.compute import manager

from tests.fixtures import claims
from tests.lxc import base, cloud, place


class ManyTest(base.LXCTestCase):
    def prepare_host(self) -> None:
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")

    def test_two_at_once(self) -> None:
        first, second = self._request(self.flavor(gpus="2"), 2)

        self.assertGPUs(first, self.gpus_inside(first))
        self.assertGPUs(second, self.gpus_inside(second))
        self.assertEqual(set(range(4)), self.gpus_inside(first) | self.gpus_inside(second))

    def test_several_in_one_request(self) -> None:
        """``min_count``: all of them, or none."""
        servers = self._request(self.flavor(gpus="3"), 1, min_count=2)
        given = [self.gpus_inside(server) for server in servers]
        self.assertEqual([3, 3, 6], [*map(len, given), len(given[0] | given[1])])

        refused = self._request(self.flavor(gpus="1"), 1, min_count=3)
        self.assertEqual({"ERROR"}, {each["status"] for each in refused})
        self.assertIn("No valid host", self.fault(refused[0]))
        self.assertEqual(6, self.usage())

    def test_twenty_for_eight(self) -> None:
        """As often as ``--bursts`` says."""
        flavor = self.flavor(gpus="1")
        for _ in range(int(os.environ.get(place.BURSTS, "1"))):
            servers = self._request(flavor, 20)

            active = [each for each in servers if each["status"] == "ACTIVE"]
            given = [gpu for server in active for gpu in self.gpus_inside(server)]
            self.assertEqual(list(range(len(place.GPUS))), sorted(given))
            self.assertEqual((8, 12), (len(active), len(servers) - len(active)))
            self.assertEqual(8, self.usage())
            self._delete_everything()

    def test_one_after_another(self) -> None:
        """As often as ``--soak`` says; the machine is looked over after each."""
        flavor = self.flavor(**base.BLUEPRINT)
        for _ in range(int(os.environ.get(place.SOAK, "5"))):
            server = self.boot(flavor)
            self.assertEqual({0, 1}, self.gpus_inside(server))
            self.delete(server)

            self.assertEqual(0, self.usage())
            self.wait_for("nothing left", lambda: set(self._lv.leftovers()) <= self._before)

    def test_the_period_between_a_claim_and_its_save(self) -> None:
        """The tracker then forgets the claim, and Nova itself would give its cards twice."""
        flavor = self.flavor(gpus="2")
        claimed: list[set[str]] = []
        overtaking: list[dict[str, Any]] = []

        def overtake(compute: manager.ComputeManager) -> None:
            claimed.append(claims.claimed(compute))
            compute.update_available_resource(context.get_admin_context())
            claimed.append(claims.claimed(compute))
            overtaking.append(self.boot(flavor))

        self.useFixture(claims.BetweenClaimAndSave(overtake))
        slow = self.boot(flavor)

        self.assertEqual([set(place.GPUS[:2]), set()], claimed, "else this shows nothing")
        self.assertGPUs(slow, {0, 1})
        self.assertGPUs(overtaking[0], {2, 3})

    def _request(self, flavor: str, count: int, **words: int) -> list[dict[str, Any]]:
        """That many requests at once; their servers when each has come to be or has failed."""
        body = self._build_server(image_uuid=cloud.IMAGE, flavor_id=flavor, networks="none")
        body.update(words)
        before = {each["id"] for each in self.api.get_servers(detail=False)}
        with futures.ThreadPoolExecutor(count) as pool:
            list(pool.map(self.api.post_server, [{"server": body}] * count))

        def servers() -> list[dict[str, Any]]:
            return [each for each in self.api.get_servers() if each["id"] not in before]

        def settled() -> bool:
            return all(each["status"] in ("ACTIVE", "ERROR") for each in servers())

        self.wait_for(f"{count} requests", settled, timeout_s=120)
        self.assertEqual(count * words.get("min_count", 1), len(servers()))
        return servers()
