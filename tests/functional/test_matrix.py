# SPDX-License-Identifier: Apache-2.0
"""The choice of walks, and what may go wrong in them."""

from __future__ import annotations

import functools
import io
import itertools
import math
import random
import unittest

from tests.cloud import oracle
from tests.matrix import axes, clouds, operations, outages, plans, report, stage, tenants, walks
from tests.matrix.branches import Found

SETUP = walks.Setup("kvm", "release", "q35", ("limit", "pc"))


class WalksTest(unittest.TestCase):
    def test_a_name_says_all_of_a_walk(self) -> None:
        steps = (
            walks.Step("stop"),
            walks.Step("boot", slot=2),
            walks.Step("start", walks.Outage("lost", "PUT-allocations.2")),
        )
        for setup in (SETUP, walks.Setup("lxc", "gpus", is_member=True)):
            own = walks.Walk(setup, steps)
            self.assertEqual(own, walks.Walk.parse(str(own)))

    def test_each_call_goes_wrong_in_each_way(self) -> None:
        own = walks.Walk(SETUP, (walks.Step("start"),))
        by_api = outages.Call("cast", "start", is_of_host=False)
        made = [outages.Call("libvirt", "create"), by_api, outages.Call("libvirt", "create")]
        texts = [str(walk.steps[0]) for walk in plans.with_outages(own, 0, made, 0)]
        self.assertEqual(3 + 3 + 3, len(texts))
        self.assertIn("start@die:create.2", texts)
        self.assertIn("start@twice:start", texts)
        self.assertEqual(2, len(plans.with_outages(own, 0, made, 2)))
        # Of two calls with one name one goes wrong, and what went wrong before does not again.
        drawn = plans.with_outages(own, 0, made, 99, {"start@die:create"})
        self.assertEqual(5, len({plans.tries(walk.steps[0]) for walk in drawn}))
        self.assertEqual(5, len(drawn))


class CallsTest(clouds.KVM):
    """What may go wrong of an operation, in a cloud"""

    def setUp(self) -> None:
        self.calls = self.useFixture(outages.Calls())
        super().setUp()

    def test_the_calls_of_a_boot(self) -> None:
        with self.calls.during(outages.Way.COUNT):
            stage.Stage(self).begin(walks.Setup("kvm", "gpus"))
        made = {(call.boundary, call.name, call.is_of_host) for call in self.calls.made}
        for call in (
            ("placement", "GET-allocation_candidates", False),
            ("placement", "GET-allocations", True),
            ("call", "select_destinations", False),
            ("cast", "build_and_run_instance", False),
            ("libvirt", "defineXML", True),
        ):
            with self.subTest(call):
                self.assertIn(call, made)


@functools.cache
def _pairs(kind: str) -> list[walks.Walk]:
    return list(plans.pairs(random.Random(1), [kind]))


class PairsTest(unittest.TestCase):
    def test_each_operation_is_tried_in_each_state_that_takes_it(self) -> None:
        pairs = {
            (tuple(step.operation for step in own.steps[:-1]), own.steps[-1].operation)
            for own in _pairs("kvm")
        }
        for state in operations.STATES.values():
            for name, operation in operations.OPERATIONS.items():
                if state.status in operation.before and "kvm" in operation.kinds:
                    self.assertIn((state.steps, name), pairs)

    def test_each_pair_of_conditions_is_tried(self) -> None:
        setups = [own.setup for own in _pairs("kvm")]
        for pair in itertools.combinations(axes.CONDITIONS, 2):
            self.assertTrue(any({*pair} <= {*setup.conditions} for setup in setups), pair)
        for flavor, condition in itertools.product(axes.FLAVORS, axes.CONDITIONS):
            if flavor != axes.PLAIN:
                has = any(s.flavor == flavor and condition in s.conditions for s in setups)
                self.assertTrue(has, (flavor, condition))


class TwinTest(unittest.TestCase):
    def test_the_twin_has_no_gpus_and_no_limit(self) -> None:
        own = walks.Walk.parse("kvm.release.q35+limit+pc/stop/start")
        self.assertEqual("kvm.plain.q35+pc/stop/start", str(plans.twin(own)))
        self.assertIsNone(plans.twin(walks.Walk.parse("kvm.plain.any/stop")))
        self.assertTrue(plans.has_rivals(walks.Walk.parse("kvm.gpus.any/stop/fill/start")))


class ExplorationTest(unittest.TestCase):
    def test_a_state_is_walked_on_from_once(self) -> None:
        exploration = plans.Exploration(walks.Setup("kvm", "gpus"))
        batches = iter(exploration)
        (root,) = next(batches)
        exploration.take(root, "ACTIVE", "running", set())
        first = next(batches)
        self.assertIn("kvm.gpus.any/stop", map(str, first))
        self.assertNotIn("kvm.gpus.any/start", map(str, first))
        for own in first:
            exploration.take(own, "SHUTOFF", "stopped", set())
        following = next(batches)
        self.assertIn(f"{first[0]}/start", map(str, following))
        self.assertIsNone(next(batches, None))


class _Contradictory:
    """A stream to a cloud in which each step goes wrong."""

    def send(self, words: tuple[object, ...]) -> None:
        self._word = words[0]

    def poll(self, timeout_s: float) -> bool:
        return True

    def recv(self) -> object:
        differences = [oracle.Difference("shared", "A", "of two")]
        answers = {"begin": {0: "ACTIVE"}, "step": ({0: "ACTIVE"}, differences), "end": []}
        return answers[str(self._word)]


class TenantsTest(unittest.TestCase):
    def test_a_walk_that_failed_is_made_shorter_for_a_while(self) -> None:
        for shrink_s, is_made_shorter in ((0.0, False), (math.inf, True)):
            own = tenants.Search(_Contradictory(), [SETUP], shrink_s)
            tenants.search(own, 8, 1, 1)
            assert own.failed
            self.assertEqual((1, ["shared: A: of two"]), (len(own.failed.steps), own.texts))
            self.assertEqual(is_made_shorter, own.begun > 1)


class ReportTest(unittest.TestCase):
    def test_a_twin_that_missed_the_call_is_gone_again(self) -> None:
        own = walks.Walk.parse("kvm.gpus.any/revert@die:finish_revert_resize")
        twin = plans.twin(own)
        assert twin
        differences = (oracle.Difference("task", "A", "goes on"),)
        reporter = report.Report(io.StringIO(), 1, [own])
        self.assertEqual(twin, reporter.take(Found(own, differences, is_hit=True)))
        self.assertEqual(twin, reporter.take(Found(twin)))
        self.assertIsNone(reporter.take(Found(twin, differences, is_hit=True)))
        self.assertEqual((2, 0), (reporter.counts["passed"], reporter.counts["failed"]))
        # What is wrong on another host without GPUs is Nova's, too
        texts = [f"its domain was {{'{host}': True}}" for host in ("host1", "host2")]
        changed = [(oracle.Difference("changed", "A", text),) for text in texts]
        reporter = report.Report(io.StringIO(), 1, [])
        reporter.take(Found(own, changed=changed[0], is_hit=True))
        reporter.take(Found(twin, changed=changed[1], is_hit=True))
        self.assertEqual((2, 0), (reporter.counts["passed"], reporter.counts["failed"]))
        # Once more, and no oftener
        reporter = report.Report(io.StringIO(), 1, [own])
        reporter.take(Found(own, differences, is_hit=True))
        self.assertEqual([twin, None], [reporter.take(Found(twin)) for _ in range(2)])
        self.assertEqual(1, reporter.counts["failed"])
