# SPDX-License-Identifier: Apache-2.0
"""When a guest's cards are given back; what is done to them then has functional tests."""

from __future__ import annotations

import dataclasses
import pathlib
import unittest
from unittest import mock

from nova import objects
from nova.compute import task_states
from oslo_utils.fixture import uuidsentinel

from nova_gpu.conf import CONF
from nova_gpu.core.model import DeliveryMode
from nova_gpu.host.state import quarantine
from nova_gpu.virt.lifecycle import releases
from nova_gpu.virt.usage.ledger import Ledger, State
from tests.fixtures import cards
from tests.fixtures.bases.compute import ONE, ComputeTestCase

(A,) = cards.addresses("0000:04:00.0")
UUID = uuidsentinel.instance


class DomainGoesTest(unittest.TestCase):
    """What becomes of an instance's cards in the ledger while its domain goes."""

    def setUp(self) -> None:
        self.ledger = Ledger()
        self.ledger.saw_domains({UUID: frozenset({A})})
        self.usage_reader = mock.Mock()
        self.usage_reader.look_again.side_effect = lambda: self.ledger.saw_domains({})
        looked = mock.Mock(mode=DeliveryMode.LXC)
        offered = mock.Mock(cards=list, groups=dict)  # none, which would be cleaned
        parts = mock.Mock(products=lambda devices: {})
        said, mended, proofs = (mock.Mock() for _ in range(3))
        self.releases = releases.Releases(
            *(looked, offered, self.ledger, self.usage_reader, said, mended, parts), proofs
        )

    def go(self, task_state: str | None) -> State | None:
        """Removes the domain; returns the state when another look has seen that it is gone, and
        this has not returned yet."""
        instance = objects.Instance(
            uuid=UUID, project_id="project", task_state=task_state, host=CONF.host
        )
        with self.releases.domain_goes(instance):
            self.ledger.saw_domains({})
            return self.state()

    def state(self) -> State | None:
        now = self.ledger.now
        return next((state for state in State if A in now.devices(state)), None)

    def test_rebuilt_in_its_place(self) -> None:
        for task in (task_states.REBUILDING, task_states.REBUILD_SPAWNING):
            self.ledger.let_go(UUID)
            self.ledger.saw_domains({UUID: frozenset({A})})
            self.assertEqual(State.MOVING, self.go(task))
            self.assertEqual(State.MOVING, self.state())
            self.assertEqual({A}, self.ledger.now.kept_by(UUID))

    def test_deleted(self) -> None:
        self.ledger.keep(UUID, [A])
        self.assertEqual(State.MOVING, self.go(task_states.DELETING))
        self.assertEqual(State.DIRTY, self.state())

    def test_while_it_is_started(self) -> None:
        """As in a hard reboot"""
        with self.ledger.hold(UUID, frozenset({A}), dict):
            self.assertEqual(State.STARTING, self.go(None))
            self.assertEqual({A}, self.ledger.now.held_for(UUID))


class FormerReleaseTest(ComputeTestCase):
    def test_its_note_is_newer_than_a_proof(self) -> None:
        """A release that knew no proofs ran, and was stopped while a guest ended."""
        self.compute.period()
        state = pathlib.Path(CONF.state_path)
        (card,) = (each for each in self.gpus.assigned.whole.cards() if str(each.address) == ONE)
        note = dataclasses.replace(
            quarantine.entry(card, "it has to be cleaned", "wait", until_boot=None, seen=None),
            cleaning=True,
        )
        quarantine.put(state / "gpu-quarantine", note)
        clean = f"GPU {ONE} is clean"
        before = self.log.output.count(clean)
        for _ in range(2):
            self.compute.restart()
            self.compute.period()
            self.assertEqual(before + 1, self.log.output.count(clean))
        self.assertEqual({}, quarantine.load(state / "gpu-quarantine"))
