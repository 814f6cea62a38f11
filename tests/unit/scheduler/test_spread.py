# SPDX-License-Identifier: Apache-2.0
"""Requests at once go to different hosts among those that are equally good."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

import fixtures
from nova import objects, test
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from benchmarks import claim_race, host_states, packing
from nova_gpu.scheduler import host_reports, recent_choices
from nova_gpu.scheduler.weights import GPUWeigher

HOSTS = 30


class SpreadTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        host_reports.forget()

    def first(
        self,
        states: Sequence[host_manager.HostState],
        instance_uuid: str,
        weigher: GPUWeigher | None = None,
    ) -> str:
        spec = host_states.spec()
        spec.instance_uuid = instance_uuid
        return str(claim_race.best_first(states, spec, weigher or GPUWeigher())[0].host)

    def race(
        self, processes: int, threads: int, instances: int = 1, *, reports: bool = True
    ) -> int:
        """How many claims are lost in all"""
        for name in ("_BURST_S", "_LASTS_S"):  # however long it takes here
            self.useFixture(fixtures.MonkeyPatch(f"{recent_choices.__name__}.{name}", 1e9))
        chance = random.Random(20261124)
        outcome = claim_race.race(HOSTS, processes, threads, chance, instances, reports=reports)
        self.assertEqual(HOSTS * host_states.GPUS, outcome.used)
        return outcome.lost

    def test_the_threads_of_a_process_lose_no_claims_to_each_other(self) -> None:
        for reports in (True, False):
            self.assertEqual(0, self.race(1, 32, reports=reports))
        self.assertEqual(0, self.race(1, 8, host_states.GPUS))

    def test_few_of_a_burst_lose_their_claims(self) -> None:
        for processes, threads, instances, most in (
            (4, 2, 1, 0.1),
            (2, 8, 1, 0.2),
            (2, 4, host_states.GPUS, 0.02),
            (3, 4, host_states.GPUS, 0.45),
        ):
            with self.subTest(processes=processes, threads=threads, instances=instances):
                lost = self.race(processes, threads, instances)
                self.assertLessEqual(lost, HOSTS * host_states.GPUS * most)

    def test_processes_break_up_the_same_hosts_until_they_meet(self) -> None:
        chosen_hosts = []
        for met in (False, True):
            states = host_states.states(8, all_free=True)
            order = [state.host for state in sorted(states, key=lambda state: str(state.uuid))]
            weigher, chosen = GPUWeigher(), list[str]()
            for number in range(6):  # no host has room for a second one
                spec = host_states.spec({"gpus": "5"})
                spec.instance_uuid = str(uuid.UUID(int=(number ^ 3) << 96))
                best, *_ = claim_race.best_first(states, spec, weigher)
                chosen.append(best.host)
                if met and not number:
                    host_states.report_partitions(best, range(1, 8))
            chosen_hosts.append(chosen)
            self.assertEqual(order[:2], chosen[:2])
        self.assertEqual(order[:6], chosen_hosts[0])
        self.assertNotEqual(order[:6], chosen_hosts[1])

    def test_a_burst_forgets_what_was_seen_before_it(self) -> None:
        """Another process sent instances to the first host, and sends none any more."""
        clock = packing.Clock()
        self.useFixture(fixtures.MockPatchObject(recent_choices, "time", clock))
        states, weigher = host_states.states(6, all_free=True), GPUWeigher()
        for clock.now, used, gpus in ((0.0, 1, 8), (1.0, 1, 8), (60.0, 4, 8), (61.0, 4, 1)):
            host_states.report_partitions(states[0], range(1, 1 + used))
            spec = host_states.spec({"gpus": str(gpus)})
            best, *_ = claim_race.best_first(states, spec, weigher)
        self.assertEqual(states[0].host, best.host)

    def test_one_alone_has_a_best_host(self) -> None:
        """It is the same for each instance and in each process."""
        states = list(host_states.states(4, all_free=True))
        states[3].free_ram_mb -= 1024
        uuids = [uuidutils.generate_uuid() for _ in range(64)]
        chosen = [self.first(states, instance_uuid) for instance_uuid in uuids]
        best = min(states[:3], key=lambda state: str(state.uuid))
        self.assertEqual({best.host}, set(chosen))
        self.assertEqual(
            chosen, [self.first(states[::-1], instance_uuid) for instance_uuid in uuids]
        )

    def test_a_host_that_reports_is_as_good_as_it_says(self) -> None:
        """Full ones come last until then, and for the seconds in which the host may not have made
        its claim yet."""
        weigher = GPUWeigher()
        states = host_states.states(3, all_free=True)
        chosen = [self.first(states, uuidutils.generate_uuid(), weigher) for _ in range(3)]
        self.assertEqual({state.host for state in states}, set(chosen))
        (freed,) = (state for state in states if state.host == chosen[2])
        # Another report, with as many free
        host_states.report_partitions(freed, (), lambda taken: {8: 1})
        for state in states:
            if state is not freed:
                self.assertIsNot(host_reports.report(state), host_reports.report(freed))
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.scheduler.recent_choices._BURST_S", 0))
        self.assertEqual(freed.host, self.first(states, uuidutils.generate_uuid(), weigher))

    def test_no_burst_breaks_up_whole_hosts_of_a_large_cloud(self) -> None:
        """With so many ranks Nova's other weighers, which spread, would weigh more than a step."""
        states, weigher = list(host_states.states(400, all_free=True)), GPUWeigher()
        host_states.report_partitions(states[0], range(1, host_states.GPUS))
        states[0].free_ram_mb //= host_states.GPUS
        states[0].free_disk_mb //= host_states.GPUS
        states[0].vcpus_used = 112
        claim_race.best_first(states, host_states.spec(), weigher)
        best, *_ = claim_race.best_first(states, host_states.spec({"gpus": "1"}), weigher)
        self.assertEqual(states[0].host, best.host)

    def test_soft_policies_of_server_groups_decide_before_packing(self) -> None:
        """Also for instances without GPUs, which would all go to the host with the fewest free."""
        for policy, expected in (("soft-anti-affinity", 3), ("soft-affinity", 1)):
            for specs in ({"gpus": "1"}, {"gpus": "1", "gpu:distribution": "spread"}, {}):
                states = host_states.states(3, all_free=True)
                host_states.report_partitions(states[0], range(1, 4))
                spec = host_states.request_spec(specs)
                group = objects.InstanceGroup(policy=policy, hosts=[], members=[])
                spec.instance_group, weigher, chosen = group, GPUWeigher(), set()
                for _ in range(3):
                    spec.instance_uuid = uuidutils.generate_uuid()
                    group.members = [*group.members, spec.instance_uuid]
                    best, *_ = claim_race.best_first(states, spec, weigher)
                    best.instances[spec.instance_uuid] = objects.Instance()
                    chosen.add(best.host)
                with self.subTest(policy=policy, specs=specs):
                    self.assertEqual(expected, len(chosen))

    def test_those_of_one_request_fill_a_host_before_the_next(self) -> None:
        weigher = GPUWeigher()
        states = list(host_states.states(3, all_free=True))
        spec = _of_several({"gpus": "2", "resources:PGPU": "2"})
        chosen = []
        for _ in range(8):
            spec.instance_uuid = uuidutils.generate_uuid()
            states = claim_race.best_first(states, spec, weigher)  # as Nova goes on with them
            states[0].consume_from_request(spec)
            chosen.append(states[0].host)
        self.assertEqual(1, len(set(chosen[:4])))
        self.assertEqual(1, len(set(chosen[4:])))
        self.assertNotEqual(chosen[0], chosen[4])

    def test_nor_to_those_that_were_refused_before_it(self) -> None:
        """Of five equal hosts the first two had none left when it was their turn."""
        states = list(host_states.states(5, all_free=True))
        spec = _of_several({"gpus": "8", "resources:PGPU": "8"})
        tried = claim_race.best_first(states, spec, GPUWeigher())
        tried[2].consume_from_request(spec)
        for _ in range(4):
            spec.instance_uuid = uuidutils.generate_uuid()
            order = claim_race.best_first(tried, spec, GPUWeigher())
            self.assertEqual(tried[3:], order[:2])
            self.assertLess(order.index(tried[0]), order.index(tried[1]))


def _of_several(specs: dict[str, str]) -> objects.RequestSpec:
    """As Nova has it for each of the instances that were asked for at once"""
    spec = host_states.request_spec(specs)
    spec.num_instances = 8
    return spec
