# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import fixtures
import testtools
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states, vm_states
from oslo_config import fixture as config_fixture
from oslo_messaging.rpc import server as rpc_server
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import device, refusal_texts
from nova_gpu.core.device import Device
from nova_gpu.core.vgpu.vgpu import Kind, Slot
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import ways
from nova_gpu.virt.lifecycle import refusals
from nova_gpu.virt.usage.ledger import Ledger
from tests.fixtures.compute import resource

UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
PROVIDER = "0b9c8d7e-1111-4222-8333-444455556666"
SLOT = Slot.parse("0000:5e:00.0/nvidia-64/0")


class LogTest(testtools.TestCase):
    """What oslo.messaging logs where a method of Nova's manager raises."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger(format="%(levelname)s %(message)s"))
        self.addCleanup(rpc_server.LOG.filters.clear)
        refusals.log_in_a_line()
        refusals.log_in_a_line()  # each service of a process does

    def raised(self, error: Exception) -> None:
        try:
            raise error
        except Exception:
            rpc_server.LOG.exception("Exception during message handling")

    def test_a_refusal_is_a_line(self) -> None:
        error = nova_exception.InstanceSuspendFailure(reason="no state can be saved")
        self.raised(refusals.expected(error))
        said = "INFO Refused: Failed to suspend instance: no state can be saved\n"
        self.assertEqual(said, self.log.output)

    def test_anything_else_has_its_traceback(self) -> None:
        self.raised(nova_exception.InstanceSuspendFailure(reason="libvirt says no"))
        rpc_server.LOG.error("A thing without an exception")
        self.assertIn("Traceback (most recent call last)", self.log.output)
        self.assertIn("ERROR A thing without", self.log.output)


class RefusalsTest(base.BaseTestCase):
    """What each way refuses is said by the way; here, of whom it is refused."""

    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.instance = objects.Instance(
            uuid=UUID, task_state=None, resources=None, flavor=objects.Flavor(extra_specs={})
        )

    def gpus(self, virt_type: str, *slots: Slot, has_gpus: bool = True) -> refusals.Refusals:
        self.config(group="libvirt", virt_type=virt_type)
        found = ways.Ways(Roots(), lambda _: None)
        kind = Kind.INSTANCE if virt_type == "lxc" else Kind.MEDIATED
        cards = mock.Mock(look=mock.Mock(kind=lambda _: kind))
        return refusals.Refusals(found, self.Assigned(slots, has_gpus), cards, Ledger())

    @dataclasses.dataclass
    class Assigned:
        """What Nova has assigned, of this host by its provider"""

        slots: tuple[Slot, ...]
        has_gpus: bool

        def __bool__(self) -> bool:
            return self.has_gpus

        def devices(self, resources: Any) -> list[Device]:
            cards = [each for each in resources or () if each.resource_class == "PGPU"]
            return [*(device.parse(each.identifier) for each in cards), *self.slots]

    def with_a_card(self) -> None:
        other = objects.Resource(
            provider_uuid=PROVIDER, resource_class="CUSTOM_OTHER", identifier="no"
        )
        self.instance.resources = objects.ResourceList(
            objects=[other, resource(PROVIDER, "0000:3b:00.0")]
        )

    def suspended(self, gpus: refusals.Refusals) -> str | None:
        try:
            gpus.suspend(self.instance)
        except nova_exception.InstanceFaultRollback as error:
            return str(error.inner_exception)
        return None

    def test_suspend(self) -> None:
        self.assertIn(refusal_texts.SUSPEND_CONTAINER, self.suspended(self.gpus("lxc")) or "")
        self.assertIsNone(self.suspended(self.gpus("lxc", has_gpus=False)))
        self.assertIsNone(self.suspended(self.gpus("kvm")))
        self.assertIn(refusal_texts.SUSPEND_GPUS, self.suspended(self.gpus("kvm", SLOT)) or "")
        self.with_a_card()
        self.assertIn(refusal_texts.SUSPEND_GPUS, self.suspended(self.gpus("kvm")) or "")
        self.instance.task_state = task_states.IMAGE_SNAPSHOT
        self.assertIn(refusal_texts.SNAPSHOT_GPUS, self.suspended(self.gpus("kvm")) or "")

    def test_live_migration_of_what_it_has(self) -> None:
        for virt_type, slots in (("kvm", ()), ("kvm", (SLOT,)), ("lxc", ())):
            self.gpus(virt_type, *slots).live_migration_from(self.instance)
        with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, "container"):
            self.gpus("lxc", SLOT).live_migration_from(self.instance)
        self.with_a_card()
        with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, "passed through"):
            self.gpus("kvm").live_migration_from(self.instance)

    def test_live_migration_by_its_flavor(self) -> None:
        for virt_type, specs, said in (
            ("kvm", {"vgpus": "1"}, None),
            ("kvm", {"gpus": "1"}, "passed through"),
            ("lxc", {"vgpus": "1"}, "container"),
            ("lxc", {"gpus": "1"}, "container"),
            ("lxc", {}, None),
        ):
            with self.subTest(virt_type=virt_type, specs=specs):
                self.instance.flavor = objects.Flavor(extra_specs=specs)
                gpus = self.gpus(virt_type)
                if said is None:
                    gpus.live_migration_to(self.instance)
                    continue
                with self.assertRaisesRegex(nova_exception.NoValidHost, said):
                    gpus.live_migration_to(self.instance)

    def test_rescue_of_any_container(self) -> None:
        self.assertFalse(self.gpus("lxc").rescue(self.instance))
        self.instance.task_state = task_states.RESCUING
        self.assertFalse(self.gpus("kvm", SLOT).rescue(self.instance))
        self.assertFalse(self.gpus("lxc", has_gpus=False).rescue(self.instance))
        self.instance.vm_state = vm_states.STOPPED
        gpus = self.gpus("lxc")
        self.assertTrue(gpus.rescue(self.instance))
        gpus.end_start(self.instance)  # another look at its power state
        self.assertTrue(gpus.is_rescue_refused(self.instance))
        self.instance.vm_state = vm_states.RESCUED
        with self.assertRaisesRegex(nova_exception.InstanceNotRescuable, "container"):
            gpus.end_start(self.instance)
        self.assertEqual(vm_states.STOPPED, self.instance.vm_state)
        self.assertFalse(gpus.is_rescue_refused(self.instance))
