# SPDX-License-Identifier: Apache-2.0
"""Whose the partitions of a board are, in a compute host in memory and by the real binding"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.core import card_sets, device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, VGPUType
from nova_gpu.host import child_process
from nova_gpu.virt.lifecycle.start import Kind
from nova_gpu_fabric.host import fabric_probe
from nova_gpu_fabric.virt.extent import Extent
from tests.fixtures import hosts, vgpu
from tests.fixtures.histories import Domain
from tests.fixtures.partitions import H100, MODULES
from tests.unit.fabric.virt.base import HALF_TYPE, WHOLE_TYPE, FabricTestCase, VGPUs, modules

BESIDE = "0000:c1:00.0"
CARDS = {module: address for address, module in MODULES.items()}


class LifeTest(FabricTestCase):
    def test_joined_until_the_cards_are_clean(self) -> None:
        """Whatever else has the partitions compared with guests meanwhile"""
        four = self.boot(4)
        active: list[set[int]] = []

        def reset(address: str) -> None:
            self.compute.gpus._discovery.deliveries.sets.part()
            active.append(self.manager.active)

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.cleaning.reset", reset))
        self.compute.delete(four)
        self.assertEqual([{1}] * 4, active)
        self.assertEqual(set(), self.manager.active)

    def test_cards_that_cannot_be_joined(self) -> None:
        wrong = [(self.provider, CARDS[module]) for module in (1, 2)]
        instance = self.compute.instance({"gpus": "2"}, *wrong)
        self.assertIn(" of 8 free, no free partition of 2", self.refused(instance))
        self.assertEqual(set(), self.manager.active)

    def test_nvlinks_that_fail_are_not_tried_again(self) -> None:
        self.manager.says("activate -10")
        instance = self.claim(4)
        self.assertIn("could not be brought up", self.refused(instance))
        self.compute.delete(instance)
        self.manager.says()
        self.compute.period()
        self.boot(4)
        self.assertEqual({2}, self.manager.active)

    def test_the_other_mode_is_read_where_it_runs(self) -> None:
        self.mode(2)
        self.compute.period()
        self.assertEqual({}, self.free())
        self.assertIn("runs with FABRIC_MODE=2, in which it joins vGPUs", self.log.output)
        instance = self.compute.instance({"gpus": "1"}, (self.provider, CARDS[1]))
        self.assertIn("FABRIC_MODE=2", self.refused(instance))
        self.compute.delete(instance)
        self.mode(1)
        self.compute.period()
        self.boot(8)
        self.assertEqual({0}, self.manager.active)

    def mode(self, number: int) -> None:
        """As the configuration says that Fabric Manager was started with"""
        root = self.compute.host.root
        config = root / "fm.cfg"
        config.write_text(f"FABRIC_MODE_RESTART=0\nFABRIC_MODE={number}\n")
        process = self.compute.host.roots.proc / "4711"
        process.mkdir(parents=True, exist_ok=True)
        (process / "cmdline").write_text(f"/usr/bin/nv-fabricmanager\0-c\0{config}\0")
        program = root / "nv-fabricmanager"
        program.touch(0o755)
        (process / "exe").unlink(missing_ok=True)
        (process / "exe").symlink_to(program)

    def test_what_placement_is_told(self) -> None:
        self.boot(1)
        self.boot(4)
        self.compute.publish()
        partition_sets = card_sets.of_traits(
            frozenset(self.compute.tree.data(self.provider).traits)
        )
        assert partition_sets
        self.assertEqual(frozenset({1, 5, 6, 7, 8}), partition_sets.taken)
        self.assertEqual({1: 3, 2: 1}, partition_sets.room())


class FaultsTest(FabricTestCase):
    """Each is named, and the host keeps its other guests and cards."""

    def prepare(self, host: hosts.Host) -> None:
        host.add_gpu(BESIDE, "10de", "1eb8", driver="vfio-pci")

    def boot_beside(self) -> None:
        """With the card that is on no board"""
        had = (self.compute.provider("1eb8"), BESIDE)
        self.compute.spawn(self.compute.instance({"gpus": "1"}, had))

    def stopped(self, count: int) -> objects.Instance:
        instance = self.boot(count)
        del self.compute.libvirt.domains[instance.uuid]
        self.compute.period()
        return instance

    def test_not_answering(self) -> None:
        begin = "Fabric Manager at 127.0.0.1:6666: "
        for code, message in (
            ("-9", "it does not answer; see systemctl status nvidia-fabricmanager"),
            ("-6", "it is of another version than its library libnvfm; install"),
        ):
            with self.subTest(code):
                self.manager.says()
                self.compute.period()
                self.boot(4)
                stopped = self.stopped(2)
                self.manager.says(f"connect {code}")
                self.assertIn(message, self.refused(stopped, Kind.REBOOT))
                self.compute.period()
                self.assertIn(message, self.refused(stopped, Kind.REBOOT))
                self.assertIn(f"given to no other: {begin}{message}", self.log.output)
                self.assertNotIn("fails the instance", self.log.output)
                self.boot_beside()
                self.assertEqual({1, 5}, self.manager.active)
                self.manager.says()
                self.compute.spawn(stopped, Kind.REBOOT)
                self.assertEqual({1, 5}, self.manager.active)
                for instance in [*self.compute.instances.values()]:
                    self.compute.delete(instance)

    def test_hanging(self) -> None:
        guests = [self.boot(2), self.boot(2), self.boot(2)]
        calls: list[str] = []

        def hangs(call: str) -> None:
            calls.append(call)
            raise child_process.Failed("it did not end in time")

        self.at_hand.fails = hangs
        for guest in guests:
            self.compute.delete(guest)
        self.assertEqual(["before partitions"], calls, "every release has waited")
        self.compute.period()
        self.assertEqual(["before partitions"] * 2, calls, "a period has waited twice")
        self.boot_beside()
        self.assertEqual(["before partitions"] * 2, calls)
        self.assertIn("it did not end in time; install", self.log.output)
        self.at_hand.fails = calls.append
        self.compute.period()
        self.assertEqual(set(), self.manager.active)

    def test_partitions_that_are_lost(self) -> None:
        guest, stopped = self.boot(4), self.stopped(4)
        self.manager.says("switch 00000000:05:00.0 33", lost=[0, 1, 2])
        self.compute.period()
        self.assertIn("cannot offer the partitions 0, 1, 2", self.log.output)
        self.assertIn("NVLinks of the NVSwitch 00000000:05:00.0 have failed", self.log.output)
        message = self.refused(stopped, Kind.REBOOT)
        self.assertIn("no partition of 4 (sizes: 1, 2)", message)
        self.assertEqual({}, self.free())
        self.compute.delete(stopped)
        self.compute.period()
        self.assertEqual({1: 4, 2: 2}, self.free())
        self.boot(2)
        self.assertEqual({5}, self.manager.active)
        self.compute.delete(guest)

    def test_a_card_without_any_partition(self) -> None:
        """The others of its board are given still."""
        self.manager.says(lost=[partition.id for partition in H100 if 8 in partition.modules])
        self.manager.restart()
        self.compute.period()
        inventory = self.compute.tree.data(self.provider).inventory["PGPU"]
        self.assertEqual((8, 1), (inventory["total"], inventory["reserved"]))

    def test_degraded_partitions_are_given(self) -> None:
        self.manager.says("links 3 16 18")
        self.compute.period()
        self.assertIn("partition 1 is degraded: modules 3 lack NVLinks", self.log.output)
        self.boot(8)
        self.assertEqual({0}, self.manager.active)


_LOADS = "nova_gpu_fabric.host.fabric_probe._library"


def _no_library() -> None:
    raise OSError("libnvfm.so: cannot open shared object file")


def _late(when: str) -> None:
    raise child_process.TimedOut("it did not answer within 60 s", b"", mock.Mock())


class RemediesTest(FabricTestCase):
    """No remedy is the cause: each is carried out in the state in which it is given.

    As tests/unit/test_remedies.py has it for a host's cards. A remedy names nova-compute where that
    is to be restarted.
    """

    CONFIG = "set FABRIC_MODE=1 in fabricmanager.cfg"
    # What makes the state, what its text advises, and that
    ROWS: tuple[tuple[Callable[..., None], str, Callable[..., None]], ...] = (
        (lambda on: on.say("connect -9"), "see systemctl status", lambda on: on.say()),
        (lambda on: on.say("connect -5"), "see systemctl status", lambda on: on.say()),
        (lambda on: on.say("connect -8"), "see systemctl status", lambda on: on.say()),
        (lambda on: on.say("connect -6"), "of the NVIDIA driver's version", lambda on: on.say()),
        (lambda on: on.say("connect -99"), "see systemctl status", lambda on: on.say()),
        (lambda on: on.load(_no_library), "devel package, of", lambda on: on.load(on.library)),
        (lambda on: on.call(_late), "see systemctl status", lambda on: on.call(str)),
        (lambda on: on.garble(), "of the NVIDIA driver's version", lambda on: on.say()),
        (
            lambda on: on.address("/nowhere"),
            r"check \[gpu\]fabric_manager_address",
            lambda on: on.address("127.0.0.1"),
        ),
        (lambda on: on.share(0), CONFIG, lambda on: on.share(1)),
        (lambda on: on.share(2), CONFIG, lambda on: on.share(1)),
        (lambda on: on.share(2, seen=True), CONFIG, lambda on: on.share(1, seen=True)),
        (lambda on: on.say("activate -10"), "the host's kernel log for SXids", lambda on: on.say()),
        (lambda on: on.lose(), "see nova-gpu host check", lambda on: on.check()),
        (lambda on: on.forget_modules(), "bind it to NVIDIA's driver", lambda on: on.bind()),
    )

    def setUp(self) -> None:
        super().setUp()
        self.library = fabric_probe._library

    def say(self, *faults: str) -> None:
        self.manager.says(*faults)

    def address(self, address: str) -> None:
        self.compute.config(group="gpu", fabric_manager_address=address)
        self.compute.restart()

    def share(self, mode: int, *, seen: bool = False) -> None:
        self.manager.mode = mode
        self.manager.says()
        if seen:
            LifeTest.mode(self, mode)

    def lose(self) -> None:
        self.manager.says(lost=[partition.id for partition in H100])

    def check(self) -> None:
        """Read it, and do what it advises."""
        faults = self.compute.gpus._discovery.deliveries.sets.board.faults()
        self.assertIn("; see systemctl status nvidia-fabricmanager", faults[0])
        self.manager.says()

    def load(self, library: Callable[[], object]) -> None:
        self.useFixture(fixtures.MonkeyPatch(_LOADS, library))

    def call(self, fails: Callable[[str], object]) -> None:
        self.at_hand.fails = fails

    def garble(self) -> None:
        self.manager.folder.joinpath("table").write_text("partition 0 1,1\n")

    def forget_modules(self) -> None:
        (self.compute.host.root / "state/gpu-modules.json").unlink()
        self.compute.restart()

    def bind(self) -> None:
        """NVIDIA's driver has the cards while nova-compute is started."""
        self.ask_nvml()
        for driver in ("nvidia", "vfio-pci"):
            for card in MODULES:
                self.compute.host.bind(card, driver)
            self.compute.restart()

    def ask_nvml(self) -> None:
        known = {PciAddress.parse(card): module for card, module in MODULES.items()}
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.modules", lambda *_: known))
        self.compute.config(group="gpu", nvml=True)

    def text(self) -> str:
        """Why a guest with four cards does not start, or why no cards are offered"""
        self.compute.period()
        card = next(iter(self.compute.gpus._discovery.find()))
        if reason := self.compute.gpus._discovery.deliveries.sets.why_not(card):
            return reason
        instance = self.claim(4)
        try:
            self.compute.spawn(instance)
        except nova_exception.ComputeResourcesUnavailable as error:
            return str(error)
        finally:
            self.compute.delete(instance)
        return ""

    def test_all_pairs(self) -> None:
        self.assertEqual("", self.text())
        room = self.free()
        for number, (happen, remedy, do) in enumerate(self.ROWS):
            with self.subTest(number=number, remedy=remedy):
                happen(self)
                text = self.text()
                self.assertRegex(text, remedy)
                do(self)
                if "restart nova-compute" in text or "it and nova-compute" in text:
                    self.compute.restart()
                self.assertEqual("", self.text())
                self.assertEqual(room, self.free())


class VGPURemediesTest(VGPUs, RemediesTest):
    ROWS = (
        (lambda on: on.say("connect -9"), "see systemctl status", lambda on: on.say()),
        (lambda on: on.share(1), "or 2 for vGPUs, and restart it", lambda on: on.share(2)),
        (lambda on: on.swap(), "restart nova-compute, which reads", lambda on: on.ask_nvml()),
    )

    def swap(self) -> None:
        """Two cards have changed places since their numbers were saved."""
        one, other, *_ = MODULES
        saved = {**MODULES, one: MODULES[other], other: MODULES[one]}
        path = self.compute.host.root / "state/gpu-modules.json"
        path.write_text(json.dumps({"modules": saved}))


class RestartsTest(FabricTestCase):
    """Restarts beside guests that run are roads of test_fabric_crashes."""

    def test_what_somebody_else_started_is_left_alone(self) -> None:
        guest = self.boot(4)
        text = self.compute.libvirt.domains.pop(guest.uuid).xml
        self.compute.instances.clear()
        # Another card in the place of one, so that they are no partition
        xml = text.replace('bus="0xbb"', 'bus="0x0f"')
        stranger = "0e0dcf62-26ac-4d36-8b7b-1d6a3d5e7b9c"
        self.compute.libvirt.domains[stranger] = Domain(stranger, xml.replace(guest.uuid, stranger))
        self.compute.restart()
        self.compute.period()
        self.assertEqual({1}, self.manager.active)


FUNCTIONS = {module: f"{card[:-1]}4" for card, module in MODULES.items()}


def joined(number: int, *modules: int) -> str:
    """What activates a partition with the first function of each card"""
    return " ".join([str(number), *(FUNCTIONS[module] for module in modules)])


class VGPULifeTest(VGPUs, FabricTestCase):
    """vGPUs that are all of a card each"""

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
        reasons = {}
        for count, instance in ((1, self.boot(1)), (0, self.claim_half())):
            (slot,) = device.slots(map(device.parse, (r.identifier for r in instance.resources)))
            reasons[count] = self.compute.gpus.moves.unmovable(slot) or ""
        self.assertIn("is all of a card that NVSwitches join for it", reasons[1])
        self.assertEqual("", reasons[0])

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


class VGPUFaultsTest(VGPUs, FabricTestCase):
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


class ExtentTest(base.BaseTestCase):
    """What is all of a card"""

    def test_functions(self) -> None:
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        host.add_gpu("0000:86:00.0", "10de", "2330", totalvfs=2)
        (function, _) = vgpu.add_functions(host, "0000:86:00.0", 2)
        card = PciAddress.parse("0000:86:00.0")
        types = [VGPUType(WHOLE_TYPE, memory_mib=81920), VGPUType(HALF_TYPE, memory_mib=40960)]
        types.append(VGPUType("nvidia-1414", memory_mib=81920, slices=7))
        extent = Extent(host.roots)
        extent.look_at_parts(
            card, DividedCard({vgpu_type.id: vgpu_type for vgpu_type in types}, {})
        )
        for text, expected in (
            (f"{function}/{WHOLE_TYPE}/0", card),
            (f"{function}/{HALF_TYPE}/0", None),
            (f"{function}/nvidia-1414/0", None),
            (f"{card}/{WHOLE_TYPE}/0", None),  # at no virtual function
            (f"0000:01:00.4/{WHOLE_TYPE}/0", None),
            (function, PciAddress.parse(function)),
        ):
            self.assertEqual(expected, extent.card(device.parse(text)), text)
        self.assertEqual(card, extent.physical(PciAddress.parse(function)))
