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
        for instances, most in ((1, 0.1), (host_states.GPUS, 0.3)):
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
            best.num_instances += 1
            chosen.append(best.host)
        self.assertEqual(1, len(set(chosen[:4])))
        self.assertEqual(1, len(set(chosen[4:])))
        self.assertNotEqual(chosen[0], chosen[4])
