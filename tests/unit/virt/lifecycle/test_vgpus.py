# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Collection

import fixtures
import libvirt
from nova import objects
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery.delivery import Grant
from nova_gpu.virt.health import failed_starts
from nova_gpu.virt.lifecycle import vgpus
from tests.fixtures import nvml, pci, vgpu
from tests.fixtures.bases.vgpus import MINE, ONE, OTHERS, PROFILED, TWO, WHOLE, VGPUsTestCase


class MadeAndRemovedTest(VGPUsTestCase):
    def test_made_for_who_starts(self) -> None:
        self.vgpus.make(OTHERS, [ONE])
        with self.assertRaisesRegex(exception.DeviceUnavailable, "an instance that is gone"):
            self.vgpus.make(MINE, [ONE])
        self.assertMade(ONE, uuid=OTHERS)
        self.vgpus.release([ONE], self.clean, OTHERS)
        for slots in ([TWO, ONE], [ONE]):
            self.vgpus.make(MINE, slots)
            self.assertMade(ONE, TWO)
        self.assertTrue(self.vgpus.cards.look.is_made(ONE, MINE), "known without a look")

    def test_what_cannot_be_noted_is_not_made(self) -> None:
        (self.host.root / "state/gpu-vgpus").write_text("no folder")
        with self.assertRaisesRegex(exception.DeviceUnavailable, "cannot be written"):
            self.vgpus.make(MINE, [ONE])
        self.assertMade()

    def test_removed(self) -> None:
        self.vgpus.make(MINE, [ONE, TWO])
        self.ledger.was_used([ONE, TWO])
        self.vgpus.release([ONE, PciAddress.parse(WHOLE)], self.clean, MINE)
        self.assertMade(TWO)
        self.assertEqual(frozenset({TWO}), self.ledger.now.used)
        self.assertFalse(self.vgpus.cards.look.is_made(ONE, MINE))
        self.ledger.saw_domains({MINE: frozenset({TWO})})
        self.vgpus.release([TWO], self.clean, MINE)
        self.assertMade(TWO)

    def test_what_is_not_removed_is_tried_again(self) -> None:
        """It stays out of the pool until it is."""
        self.vgpus.make(MINE, [ONE])
        self.ledger.was_used([ONE])
        lost = OSError("no daemon")
        with fixtures.MockPatch("nova_gpu.privsep.vgpu.remove", side_effect=lost):
            self.vgpus.release([ONE], self.clean, MINE)
        self.assertEqual(frozenset({ONE}), self.ledger.now.used)
        self.assertIn("until a retry succeeds: no daemon", self.log.output)
        self.vgpus.settle(self.ledger.now.left(), self.clean)
        self.vgpus.retries.wait()
        self.assertMade()
        self.assertEqual(frozenset(), self.ledger.now.used)


class ParamsTest(VGPUsTestCase):
    """Of NVIDIA's vGPUs: a function's, and a mediated device's"""

    def prepare(self) -> None:
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=1)
        (function,) = vgpu.add_functions(self.host, PROFILED, 1)
        vgpu.set_profiles(self.host, function, {}, current=1155)
        self.typed = Slot.parse(f"{function}/nvidia-1155/0")
        self.file = self.host.path(function) / "nvidia/vgpu_params"
        self.file.touch()
        self.config = self.useFixture(config_fixture.Config(CONF)).config

    def test_of_who_starts(self) -> None:
        for params in ("enable_uvm=1", "enable_uvm=0,frame_rate_limiter=0", "", ""):
            self.vgpus.make(MINE, [self.typed], params)
            self.assertEqual(f"{params}\n" if params else "", self.file.read_text().lstrip("\n"))
        self.vgpus.make(MINE, [ONE])
        device = self.host.roots.sysfs / "bus/mdev/devices" / device_uuid(MINE, ONE)
        pci.write(device / "nvidia/vgpu_params", "\n")
        self.vgpus.make(MINE, [ONE], "enable_debugging=1")
        self.assertEqual("enable_debugging=1\n", (device / "nvidia/vgpu_params").read_text())

    def test_refused(self) -> None:
        with self.assertRaisesRegex(exception.DeviceUnavailable, "does not permit disable_vnc"):
            self.vgpus.make(MINE, [self.typed], "disable_vnc=1,enable_uvm=1")
        with self.assertRaises(exception.InvalidExtraSpec):
            self.vgpus.make(MINE, [self.typed], "enable_uvm=1 plugin=/tmp/x")
        self.assertEqual("", self.file.read_text())
        self.file.unlink()
        with self.assertRaisesRegex(exception.DeviceUnavailable, "enable_uvm=1 were not set"):
            self.vgpus.make(MINE, [self.typed], "enable_uvm=1")


class RestoredTest(VGPUsTestCase):
    """A card in MIG mode with three GPU instances; a guest has a vGPU in the first"""

    def prepare(self) -> None:
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=2, driver="nvidia", minor=0)
        self.free, used = vgpu.add_functions(self.host, PROFILED, 2)
        vgpu.set_profiles(self.host, self.free, vgpu.L40S)
        vgpu.set_profiles(self.host, used, {}, current=1155)
        pci.write(self.host.path(used) / "nvidia/gpu_instance_id", "1\n")
        self.done = self.host.root / "done"
        self.library = self.useFixture(nvml.Library())
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(
            group="gpu", virtual_functions=["10de:26b9=2"], mig_profile=["10de:26b9=1g.24gb"]
        )

    def made(self, *lacking: int, **answers: str) -> list[str]:
        """What is made when the next guest starts, and these have no compute instance"""
        self.done.write_text("")
        self.host.set_mig(PROFILED, [(number, 0) for number in (1, 2, 3)])
        for number in lacking:
            folder = self.host.roots.proc / "driver/nvidia/capabilities/gpu0/mig"
            shutil.rmtree(folder / f"gi{number}/ci0")
        none = {f"computes.{number}": "0" for number in lacking}
        card = nvml.Card(PROFILED, "NVIDIA RTX PRO 6000", 10, 97887, "12.0")
        lines = {"compute.0": "0 1", "computes.2": "1", "computes.3": "1"} | none | answers
        self.library.say(card, done=str(self.done), **lines)
        slot = Slot.parse(f"{self.free}/nvidia-1155/0")
        try:
            self.vgpus.make(MINE, [slot])
        finally:
            self.vgpus.release([slot], self.clean, MINE)
        return self.done.read_text().splitlines()

    def test_compute_instances_that_guests_deleted(self) -> None:
        """They are made again, but for that of a guest that runs, or no guest starts."""
        self.assertEqual([], self.made())
        self.assertEqual([], self.made(1))
        self.assertEqual(["compute instance 0"] * 2, self.made(1, 2, 3))
        self.assertIn(f"Made 2 compute instances of GPU {PROFILED} again", self.log.output)
        for _ in range(3):
            with self.assertRaisesRegex(exception.DeviceUnavailable, "of its GPU instance 2, and"):
                self.made(2, compute_room="0")
        self.assertEqual([], self.made(), "the function is not at fault")
        self.config(group="gpu", mig_profile=["10de:2335=1g.18gb"])
        self.assertEqual([], self.made(2), "the operator's")


class FailedStartsTest(VGPUsTestCase):
    def prepare(self) -> None:
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=2)
        self.functions = vgpu.add_functions(self.host, PROFILED, 2)
        for function in self.functions:
            vgpu.set_profiles(self.host, function, vgpu.L40S)
            self.host.bind(function, "nvidia")
            self.host.register_with_vfio(function)

    def start(
        self, uuid: str, grants: Collection[Grant]
    ) -> contextlib.AbstractContextManager[None]:
        """Begin the start of a guest, each of which is of a project of its own."""
        instance = objects.Instance(uuid=uuid, project_id=uuid)
        return self.vgpus.start(instance, grants, is_new=True)

    def offered(self) -> set[str]:
        card = self.vgpus.cards.look.cards[PciAddress.parse(PROFILED)]
        return {str(slot.parent) for slot in card.free_slots("nvidia-1155", (), ())}

    def fail(
        self,
        *slots: Slot,
        text: str = "vfio {}: error getting device from group 6",
        uuid: str = MINE,
    ) -> None:
        with self.assertRaises(libvirt.libvirtError), self.start(uuid, slots):
            raise libvirt.libvirtError(text.format(slots[0].parent))

    def test_what_says_nothing_of_the_function(self) -> None:
        slots = [Slot.parse(f"{function}/nvidia-1155/0") for function in self.functions]
        for _ in range(failed_starts.MOST):
            self.fail(slots[0], text="guest ended")
            self.fail(*slots)
            self.fail(ONE)  # nor are mediated devices counted
        self.assertEqual(set(self.functions), self.offered())
        self.assertNotIn("New instances do not get", self.log.output)

    def test_functions_that_their_driver_refuses_a_type(self) -> None:
        """It says so of the function, unless it is the host that has no memory."""
        first, second = self.functions
        for function, reason in ((first, "Input/output error"), (second, "Cannot allocate memory")):
            slot = Slot.parse(f"{function}/nvidia-1155/0")
            error = exception.DeviceUnavailable(function, f"it was not made: {reason}", "wait")
            with fixtures.MockPatch("nova_gpu.privsep.vgpu.make", side_effect=error):
                for _ in range(failed_starts.MOST):
                    self.assertRaises(exception.DeviceUnavailable, self.vgpus.make, MINE, [slot])
                    other = Slot.parse(f"{second}/nvidia-1147/0")
                    both = [other, Slot.parse(f"{second}/nvidia-1155/0")]  # too many, maybe
                    self.assertRaises(exception.DeviceUnavailable, self.vgpus.make, MINE, both)
        self.assertEqual({second}, self.offered())

    def test_card_without_room_for_the_type(self) -> None:
        """Such as one in MIG mode, whose GPU instances a boot of the host has removed"""
        slot = Slot.parse(f"{self.functions[0]}/nvidia-1155/0")
        for function in self.functions:
            vgpu.set_profiles(self.host, function, {})
        for _ in range(failed_starts.MOST):
            with self.assertRaisesRegex(exception.DeviceUnavailable, "does not list the type"):
                self.vgpus.make(MINE, [slot])
        for function in self.functions:
            vgpu.set_profiles(self.host, function, vgpu.L40S)
        self.vgpus.cards.read_again(slot)
        self.assertEqual(set(self.functions), self.offered())

    def free(self) -> list[Slot]:
        return list(self.vgpus.cards.look.cards[ONE.parent].free_slots("nvidia-63", (), ()))

    def test_mediated_devices_of_two_guests(self) -> None:
        """Each guest's is another device; no card is at fault."""
        for _ in range(failed_starts.MOST):
            self.fail(ONE)
        self.assertNotIn("New instances do not get", self.log.output)
        self.assertNotEqual([], self.free())
        self.fail(ONE, uuid=OTHERS)
        for _ in range(2):
            self.assertEqual([], self.free())
            self.vgpus.keep_failed()
        self.assertEqual(set(self.functions), self.offered(), "of another kind")
        with self.start(MINE, [TWO]):
            pass
        self.assertNotEqual([], self.free())

    def test_mediated_devices_of_one_card(self) -> None:
        """If NVIDIA's manager refuses them, the card may be at fault; others are tried then."""
        refused = "vfio {}: error getting device from group 6: Input/output error"
        for uuid in (MINE, OTHERS, MINE):
            self.assertNotEqual([], self.free())
            self.fail(ONE, uuid=uuid, text=refused)
        self.assertEqual([], self.free())
        self.assertNotIn("of this host", self.log.output)
        self.assertIn(f"3 starts in a row failed with {ONE.parent}", self.log.output)


MIG_ONE, MIG_TWO = (Slot.parse(f"0000:19:00.0/1g.18gb/{number}") for number in (900, 901))
MIG_OTHER = Slot.parse("0000:3b:00.0/1g.18gb/900")


class RetriesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.retries = vgpus.Retries(device.function)
        self.tried: list[Device] = []
        self.bad: set[Device] = set()

    def release(self, device: Device) -> bool:
        self.tried.append(device)
        return device not in self.bad

    def period(self, *left: Device) -> list[Device]:
        """What it tries"""
        self.tried.clear()
        self.retries.begin(left, self.release)
        self.retries.wait()
        return sorted(self.tried, key=str)

    def test_later_and_later(self) -> None:
        self.bad.add(MIG_ONE)
        tried = [number for number in range(200) if self.period(MIG_ONE)]
        self.assertEqual([0, 1, 3, 7, 15, 31, 63, 123, 183], tried)
        self.bad.clear()
        while not self.period(MIG_ONE):
            pass
        self.assertEqual([], self.period())
        self.bad.add(MIG_ONE)
        self.assertEqual([MIG_ONE], self.period(MIG_ONE), "it begins anew")
        self.assertEqual([MIG_ONE], self.period(MIG_ONE))
        self.assertEqual([], self.period(MIG_ONE))

    def test_each_by_itself(self) -> None:
        self.bad.add(MIG_ONE)
        for _ in range(2):
            self.period(MIG_ONE, MIG_OTHER)
        self.assertEqual([MIG_TWO, MIG_OTHER], self.period(MIG_ONE, MIG_TWO, MIG_OTHER))

    def test_nobody_waits(self) -> None:
        """The cards side by side, and of each that is at work nothing more is begun."""
        both, goes_on = threading.Barrier(3, timeout=200), threading.Event()
        self.addCleanup(goes_on.set)

        def hang(device: Device) -> bool:
            self.tried.append(device)
            if device != MIG_TWO:
                both.wait()
                goes_on.wait(200)
            return True

        for _ in range(3):
            self.retries.begin([MIG_ONE, MIG_TWO, MIG_OTHER], hang)
        both.wait()
        self.retries.begin([MIG_TWO], hang)
        self.assertEqual({MIG_ONE, MIG_OTHER}, set(self.tried))
        goes_on.set()
        self.assertTrue(self.retries.wait())
        self.assertEqual(
            [MIG_ONE, MIG_OTHER, MIG_TWO],
            sorted(self.tried, key=lambda slot: (slot == MIG_TWO, str(slot))),
        )
