# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import inspect
from typing import Any

import fixtures
import testtools
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from nova.conductor import manager
from oslo_utils.fixture import uuidsentinel as uuids
from oslotest import base

from nova_gpu.virt.lifecycle import lost_reasons, refusals

_EXHAUSTED = (
    "Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures "
    "for instance 0b9c8d7e-1111-4222-8333-444455556666."
)


class LostReasonsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.instance = objects.Instance(vm_state=vm_states.ERROR, task_state=None)
        self.faults = [objects.InstanceFault(message=_EXHAUSTED, code=500, details="all")]
        read = fixtures.MockPatchObject(objects.Instance, "get_by_uuid", return_value=self.instance)
        self.read = self.useFixture(read).mock
        for name, substitute in (
            ("get_latest_for_instance", lambda *_: self.faults[-1]),
            ("create", lambda fault: self.faults.append(fault)),
        ):
            self.useFixture(fixtures.MonkeyPatch(f"nova.objects.InstanceFault.{name}", substitute))
        self.lost = lost_reasons.LostReasons()
        self.fails(nova_exception.ComputeResourcesUnavailable(reason="it is busy; " + 50 * "wait "))

    def fails(self, error: Exception) -> None:
        try:
            with self.lost.noting(uuids.instance):
                raise error
        except type(error) as caught:
            self.assertIs(error, caught)

    def test_the_conductors_text(self) -> None:
        source = ast.parse(inspect.getsource(manager))
        texts = [node.value for node in ast.walk(source) if isinstance(node, ast.Constant)]
        written = [text for text in texts if lost_reasons._DROPPED in str(text)]
        self.assertEqual([f"{lost_reasons._DROPPED} for instance %(instance_uuid)s."] * 2, written)

    def test_written_once(self) -> None:
        """When no other host is tried any more"""
        self.instance.task_state = task_states.SCHEDULING
        self.lost.write()
        self.assertEqual(1, len(self.faults))
        self.instance.task_state = None
        self.lost.write()
        self.lost.write()
        new = self.faults[-1]
        self.assertEqual((2, 2), (len(self.faults), self.read.call_count))
        self.assertIn("retries. One host's reason: Insufficient compute", new.message)
        self.assertIn("it is busy", new.message)
        self.assertEqual((255, 500), (len(new.message), new.code))

    def test_what_operators_read(self) -> None:
        for code, details in ((500, "GPU 0000:3b:00.0 is busy: domain x\n\nall"), (400, "all")):
            self.faults = [objects.InstanceFault(message=_EXHAUSTED, code=code, details="all")]
            error = nova_exception.ComputeResourcesUnavailable(reason="it is busy")
            error.__cause__ = RuntimeError("GPU 0000:3b:00.0 is busy: domain x")
            self.fails(error)
            self.lost.write()
            self.assertEqual(details, self.faults[-1].details)
            self.assertNotIn("domain x", self.faults[-1].message)

    def test_nothing_to_write(self) -> None:
        """It runs elsewhere, its fault has a reason, or it failed of another error."""
        for state, message in (
            (vm_states.ACTIVE, _EXHAUSTED),
            (vm_states.ERROR, "Exceeded maximum number of retries. Last exception: no"),
        ):
            self.instance.vm_state, self.faults[0].message = state, message
            self.lost.write()
            self.assertEqual(1, len(self.faults))
            self.fails(nova_exception.ComputeResourcesUnavailable(reason="busy"))
        self.lost = lost_reasons.LostReasons()
        self.fails(nova_exception.BuildAbortException(instance_uuid=uuids.instance, reason="no"))
        self.lost.write()
        self.assertEqual(2, self.read.call_count)

    def test_deleted_or_unread(self) -> None:
        for error, again in (
            (RuntimeError("lost"), 2),
            (nova_exception.InstanceNotFound(instance_id=uuids.instance), 1),
        ):
            read = fixtures.MockPatch("nova.objects.Instance.get_by_uuid", side_effect=error)
            self.useFixture(read)
            self.lost.write()
            self.lost.write()
            self.assertEqual(again, read.mock.call_count)
        self.assertEqual(1, len(self.faults))
        self.assertIn("will retry in the next period: lost", self.log.output)


class RefusedStartsTest(testtools.TestCase):
    def test_raised_once_and_by_no_later_operation(self) -> None:
        unused: Any = None
        refused = refusals.Refusals(unused, unused, unused, unused)
        task = task_states.REBOOT_STARTED_HARD
        instance = objects.Instance(uuid=uuids.instance, vm_state="stopped", task_state=task)
        error = nova_exception.InstanceUnacceptable(instance_id=uuids.instance, reason="none free")
        refused.starts.refuse(instance, error)
        instance.vm_state = vm_states.ACTIVE
        self.assertIs(error, self.assertRaises(type(error), refused.starts.end, instance))
        self.assertEqual("stopped", instance.vm_state)
        refused.starts.end(instance)
        refused.starts.refuse(instance, error)
        instance.task_state = task_states.POWERING_OFF
        self.assertFalse(refused.rescue(instance))
        instance.task_state = task
        refused.starts.end(instance)
