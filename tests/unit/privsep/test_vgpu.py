# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from unittest import mock

import nova_gpu.privsep.vgpu
from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.vgpu import mdev
from tests.fixtures import dividing_kernel, vgpu
from tests.fixtures.verbs import VerbTestCase

CARD, OTHER = "0000:3b:00.0", "0000:82:00.0"
INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
ANOTHER = "0b9c8d7e-1111-4222-8333-444455556666"
SLOT = f"{CARD}/nvidia-64/0"


class VGPUTestCase(VerbTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1bb3")
        self.host.add_gpu(OTHER, "10de", "26b9", totalvfs=1)
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        (self.function,) = vgpu.add_functions(self.host, OTHER, 1)
        vgpu.set_profiles(self.host, self.function, vgpu.L40S)

    def refused(self, slot: str = SLOT, reason: str = "") -> exception.DeviceUnavailable:
        error: exception.DeviceUnavailable = self.assertRaises(
            exception.DeviceUnavailable, nova_gpu.privsep.vgpu.make, slot, INSTANCE
        )
        self.assertIn(reason, error.reason)
        return error


class TestMediated(VGPUTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.kernel = self.useFixture(dividing_kernel.DividingKernel(self.host))
        self.uuid = values.device_uuid(INSTANCE, values.Slot.parse(SLOT))

    def waited_for(self) -> dict[str, mdev.MediatedDevice]:
        """What there is once the pretended kernel has done what was written"""
        self.assertTrue(self.kernel.changed.wait(200))
        self.kernel.changed.clear()
        return dict(mdev.devices(self.host.roots))

    def test_there_and_gone(self) -> None:
        nova_gpu.privsep.vgpu.make(SLOT, INSTANCE)
        made = mdev.MediatedDevice(PciAddress.parse(CARD), "nvidia-64")
        self.assertEqual({self.uuid: made}, self.waited_for())
        nova_gpu.privsep.vgpu.make(SLOT, INSTANCE)  # as after a restart of the service
        nova_gpu.privsep.vgpu.remove(SLOT, ANOTHER)  # whose it is not
        nova_gpu.privsep.vgpu.remove(f"{CARD}/nvidia-64/1", INSTANCE)
        self.assertEqual([f"+{self.uuid}"], self.kernel.done)
        nova_gpu.privsep.vgpu.remove(SLOT, INSTANCE)
        self.assertEqual({}, self.waited_for())
        nova_gpu.privsep.vgpu.remove(SLOT, INSTANCE)
        self.assertEqual([f"+{self.uuid}", f"-{self.uuid}"], self.kernel.done)

    def test_of_another_type(self) -> None:
        vgpu.make(self.host, CARD, "nvidia-63", self.uuid)
        self.refused(reason=f"{self.uuid} exists already, on {CARD} (nvidia-63)")
        nova_gpu.privsep.vgpu.remove(SLOT, INSTANCE)
        self.assertEqual("", (self.host.path(CARD) / self.uuid / "remove").read_text())

    def test_what_the_kernel_refuses(self) -> None:
        create = self.host.path(CARD) / "mdev_supported_types/nvidia-64/create"
        create.unlink()
        create.symlink_to("/dev/full")
        self.assertEqual(CARD, self.refused(reason="No space left on device").address)

    def test_a_driver_that_does_not_return(self) -> None:
        self.config(group="gpu", bind_timeout=1)
        vgpu.make(self.host, CARD, "nvidia-64", self.uuid)
        remove = self.host.path(CARD) / self.uuid / "remove"
        remove.unlink()
        os.mkfifo(remove)
        error = self.assertRaises(exception.NotClean, nova_gpu.privsep.vgpu.remove, SLOT, INSTANCE)
        self.assertIn("did not answer within 1 s", error.reason)

    def test_a_type_that_is_not_there(self) -> None:
        for slot in (f"{CARD}/nvidia-99/0", "0000:99:00.0/nvidia-64/0"):
            self.refused(slot)
            nova_gpu.privsep.vgpu.remove(slot, INSTANCE)
        self.assertEqual([], self.kernel.done)

    def test_a_slot_and_an_instance(self) -> None:
        bad_slots = [(slot, INSTANCE) for slot in ("../x", f"{CARD}/../0")]
        for slot, instance in (*bad_slots, (SLOT, "../x"), (SLOT, "")):
            for verb in (nova_gpu.privsep.vgpu.make, nova_gpu.privsep.vgpu.remove):
                self.assertRaises(exception.InvalidValue, verb, slot, instance)


class TestProfiles(VGPUTestCase):
    def current(self) -> str:
        path = self.host.path(self.function) / "nvidia/current_vgpu_type"
        return path.read_text().strip()

    def setUp(self) -> None:
        super().setUp()
        self.slot = f"{self.function}/nvidia-1147/0"

    def test_there_and_gone(self) -> None:
        for _ in range(2):
            nova_gpu.privsep.vgpu.make(self.slot, INSTANCE)
            self.assertEqual("1147", self.current())
        for _ in range(2):
            nova_gpu.privsep.vgpu.remove(self.slot, INSTANCE)
            self.assertEqual("0", self.current())

    def test_of_another_type_and_driver(self) -> None:
        self.refused(f"{self.function}/mtty-1147/0")
        self.assertEqual("0", self.current())
        vgpu.set_profiles(self.host, self.function, {}, current=1156)
        self.refused(self.slot, "nvidia-1156")
        nova_gpu.privsep.vgpu.remove(self.slot, INSTANCE)
        self.assertEqual("1156", self.current())

    def test_a_driver_that_says_nothing(self) -> None:
        with mock.patch("nova_gpu.host.pci.sysfs.write"):
            self.refused(self.slot, "gave the function no type")
        nova_gpu.privsep.vgpu.make(self.slot, INSTANCE)
        with mock.patch("nova_gpu.host.pci.sysfs.write"):
            failed = self.assertRaises(
                exception.NotClean, nova_gpu.privsep.vgpu.remove, self.slot, INSTANCE
            )
        self.assertIn("left the function its type", failed.reason)

    def test_plain_one_is_looked_at_and_left_as_it_is(self) -> None:
        card, function = "0000:c3:00.0", "0000:c3:00.1"
        self.host.add_gpu(card, "8086", "56c0", totalvfs=1)
        self.host.add_vf(card, function, driver="i915")
        slot = f"{function}/vf/0"
        self.refused(slot, f"{function} is bound to i915")
        self.host.bind(function, None)
        self.host.set_autoprobe(card, enabled=False)
        nova_gpu.privsep.vgpu.make(slot, INSTANCE)
        nova_gpu.privsep.vgpu.remove(slot, INSTANCE)
        self.host.remove(function)
        self.assertEqual(privileged_cards.REASON, self.refused(slot).reason)
