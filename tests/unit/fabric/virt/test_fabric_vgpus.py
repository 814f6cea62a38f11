# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are all of a card each, in a compute host in memory and by the real binding"""

from __future__ import annotations

import shutil

from nova_gpu.core import device
from nova_gpu.core.sets import set_traits
from nova_gpu.virt.lifecycle.start import Kind
from tests.fixtures.histories import Domain
from tests.fixtures.partitions import MODULES
from tests.unit.fabric.virt.base import HALF_TYPE, FabricTestCase, VGPUs, modules

FUNCTIONS = {module: f"{card[:-1]}4" for card, module in MODULES.items()}


def joined(number: int, *modules: int) -> str:
    """What activates a partition with the first function of each card"""
    return " ".join([str(number), *(FUNCTIONS[module] for module in modules)])


class LifeTest(VGPUs, FabricTestCase):
    def test_joined_for_a_guest_and_parted_after_it(self) -> None:
        four = self.boot(4)
        self.assertEqual({1}, self.manager.active)
        two = self.boot(2)
        self.assertEqual({1, 5}, self.manager.active)
        self.assertEqual([joined(1, 1, 2, 3, 4), joined(5, 5, 7)], self.manager.functions())
        self.compute.delete(four)
        self.assertEqual({5}, self.manager.active)
        self.compute.delete(two)
        self.assertEqual(set(), self.manager.active)
        self.assertEqual({}, self.kernel.made)

    def test_smaller_ones_take_none(self) -> None:
        half = self.claim_half()
        self.compute.spawn(half)
        self.compute.period()
        self.assertEqual(set(), self.manager.active)
        self.assertEqual({1: 7, 2: 3, 4: 1}, self.free())
        (its,) = modules(half)
        four = self.boot(4)
        self.assertNotIn(its, modules(four))
        self.compute.delete(half)
        self.assertEqual(1, len(self.manager.active))

    def test_what_placement_is_told(self) -> None:
        half = self.claim_half()
        self.compute.spawn(half)
        self.boot(4)
        self.compute.publish()
        whole, of_halves = (
            set_traits.board(frozenset(self.compute.tree.data(provider).traits))
            for provider in (self.provider, self.compute.provider("2330", HALF_TYPE))
        )
        assert whole
        self.assertEqual(5, len(whole.taken))
        self.assertLessEqual(modules(half), whole.taken)
        self.assertIsNone(of_halves)

    def test_cards_in_no_partition_together(self) -> None:
        for guest in [self.boot(1) for _ in range(8)]:
            if not modules(guest) & {1, 5}:
                self.compute.delete(guest)
        self.compute.period()
        self.assertEqual({1: 6, 2: 2}, self.free())
        self.assertIn("6 of 8 free, no free partition of 4", self.refused(self.claim(4)))

    def test_a_function_of_a_guest_that_has_gone(self) -> None:
        """Fabric Manager does not say for which functions a partition is active."""
        self.manager.set_active([7])
        instance = self.claim(1)
        self.assertEqual({1}, modules(instance))
        self.compute.spawn(instance)
        self.assertEqual([joined(7, 1)], self.manager.functions())

    def test_a_guest_that_may_run_is_not_parted(self) -> None:
        instance = self.boot(2)
        self.at_hand.fails = lambda when: self.assertNotIn("deactivate", when)
        with self.compute.spawning(instance, Kind.REBOOT):
            pass
        self.assertEqual(1, len(self.manager.functions()))

    def test_what_runs_is_not_moved(self) -> None:
        said = {}
        for count, instance in ((1, self.boot(1)), (0, self.claim_half())):
            (slot,) = device.slots(map(device.parse, (r.identifier for r in instance.resources)))
            said[count] = self.compute.gpus.moves.unmovable(slot) or ""
        self.assertIn("is all of a card that NVSwitches join for it", said[1])
        self.assertEqual("", said[0])

    def test_fabric_manager_restarts(self) -> None:
        self.boot(4)
        self.manager.restart()
        self.compute.period()
        self.assertEqual({1}, self.manager.active)
        self.manager.set_active([2])
        self.compute.restart()
        self.compute.period()
        self.assertEqual({1}, self.manager.active)
        self.assertEqual(2, len(self.manager.functions()))

    def test_somebody_elses_functions_are_left_alone(self) -> None:
        guest = self.boot(2)
        text = self.compute.libvirt.domains.pop(guest.uuid).xml
        self.compute.instances.clear()
        shutil.rmtree(self.compute.host.root / "state/gpu-vgpus")
        begin, end = text.index("<metadata"), text.index("</metadata>")
        stranger = "0e0dcf62-26ac-4d36-8b7b-1d6a3d5e7b9c"
        xml = (text[:begin] + text[end + len("</metadata>") :]).replace(guest.uuid, stranger)
        self.compute.libvirt.domains[stranger] = Domain(stranger, xml)
        self.compute.restart()
        self.compute.period()
        self.assertEqual(1, len(self.manager.active))


class FaultsTest(VGPUs, FabricTestCase):
    def test_down(self) -> None:
        stopped, half = self.boot(2), self.claim_half()
        self.compute.libvirt.domains.clear()
        self.manager.says("connect -9")
        self.compute.period()
        self.assertEqual({}, self.free())
        whole = self.compute.tree.data(self.provider).inventory["VGPU"]
        self.assertEqual((8, 6), (whole["total"], whole["reserved"]))
        self.assertIn("it does not answer", self.refused(stopped, Kind.REBOOT))
        # What needs no fabric starts
        self.compute.spawn(half)
        self.manager.says()
        self.compute.period()
        self.compute.spawn(stopped, Kind.REBOOT)
        self.assertEqual(1, len(self.manager.active))

    def test_a_manager_of_the_other_mode(self) -> None:
        self.manager.mode = 1
        self.manager.says()
        instance = self.claim(1)
        self.assertIn("does not share the NVSwitches", self.refused(instance))
        self.compute.delete(instance)
        self.compute.period()
        self.assertEqual({}, self.free())
        self.assertIn("runs with FABRIC_MODE=1, in which it joins no vGPUs", self.log.output)
        self.assertNotIn(HALF_TYPE, self.log.output.partition("joins no vGPUs")[2])
