# SPDX-License-Identifier: Apache-2.0
"""Requests at once go to different hosts among those that are equally good."""

from __future__ import annotations

import random

from nova import test
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from benchmarks import claim_race, host_states
from nova_gpu.scheduler import reported

HOSTS = 30


class SpreadTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        reported.forget()

    def first(self, states: list[host_manager.HostState], instance_uuid: str) -> str:
        spec = host_states.spec()
        spec.instance_uuid = instance_uuid
        return str(claim_race.best_first(states, spec)[0].host)

    def test_few_of_a_burst_lose_their_claims(self) -> None:
        for instances, most in ((1, 0.1), (host_states.GPUS, 0.2)):
            with self.subTest(instances=instances):
                found = claim_race.race(HOSTS, 8, random.Random(20261124), instances)
                self.assertEqual(HOSTS * host_states.GPUS, found.used)
                self.assertLessEqual(found.lost, found.used * most)

    def test_one_alone_has_a_best_host(self) -> None:
        """Any of those, the same each time, and no other"""
        states = list(host_states.states(4, all_free=True))
        states[3].free_ram_mb -= 1024
        uuids = [uuidutils.generate_uuid() for _ in range(64)]
        chosen = [self.first(states, each) for each in uuids]
        self.assertEqual({state.host for state in states[:3]}, set(chosen))
        self.assertEqual(chosen, [self.first(states, each) for each in uuids])
        self.assertEqual(chosen, [self.first(states[:], each) for each in uuids])

    def test_those_of_one_request_fill_a_host_before_the_next(self) -> None:
        states = list(host_states.states(3, all_free=True))
        spec = host_states.request_spec({"gpus": "2", "resources:PGPU": "2"})
        chosen = []
        for _ in range(8):
            spec.instance_uuid = uuidutils.generate_uuid()
            best = claim_race.best_first(states, spec)[0]
            best.consume_from_request(spec)
            chosen.append(best.host)
        self.assertEqual(1, len(set(chosen[:4])))
        self.assertEqual(1, len(set(chosen[4:])))
        self.assertNotEqual(chosen[0], chosen[4])

    def test_they_do_not_go_back_to_a_host_that_was_refused(self) -> None:
        """Whatever it has reported, Placement counts there what others have taken meanwhile."""
        states = list(host_states.states(3, all_free=True))
        spec = host_states.request_spec({"gpus": "1", "resources:PGPU": "1"})
        (first, *_) = claim_race.best_first(states, spec)
        first.consume_from_request(spec)
        again, second, _ = claim_race.best_first(states, spec)
        self.assertEqual(first.host, again.host)
        second.consume_from_request(spec)  # as the first one is refused
        order = [each.host for each in claim_race.best_first(states, spec)]
        self.assertEqual((second.host, first.host), (order[0], order[-1]))

    def test_nor_to_those_that_were_refused_before_it(self) -> None:
        """Of five equal hosts the first two had none left when it was their turn."""
        states = list(host_states.states(5, all_free=True))
        spec = host_states.request_spec({"gpus": "8", "resources:PGPU": "8"})
        tried = claim_race.best_first(states, spec)
        tried[2].consume_from_request(spec)
        for _ in range(4):
            spec.instance_uuid = uuidutils.generate_uuid()
            order = claim_race.best_first(tried, spec)
            self.assertEqual(tried[3:], order[:2])
            self.assertLess(order.index(tried[0]), order.index(tried[1]))
