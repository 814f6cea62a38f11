# SPDX-License-Identifier: Apache-2.0
"""MIG instances, which containers get: from the provider tree to the guest and back."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any, ClassVar
from unittest import mock

import fixtures
from oslo_utils import uuidutils

from nova_gpu.core import model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt import counters, driver
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.lifecycle import proofs, releases
from nova_gpu.virt.verify.sources import Kind
from tests.fixtures import failing_calls
from tests.functional import alone, cleaned, mig, test_verify
from tests.functional.mig import FIRST, HALF, LARGE, LAYOUT, SECOND, SMALL, WHOLE, nodes_of, slot
from tests.functional.test_strangers import _DOMAIN as FOREIGN

ONE, TWO = slot(FIRST, 9, 0, SMALL), slot(FIRST, 10, 0, SMALL)
BIG = slot(FIRST, 1, 0, LARGE)


class RoadTest(alone.Alone, test_verify.Verifying, mig.MIGServersTestBase):
    def test_there_and_back(self) -> None:
        self.assertEqual((6, 0, 0), self.vgpus())
        self.assertEqual((2, 0, 0), self.vgpus(LARGE))
        self.assertInventory(total=6)
        one, two = (self.boot(self.of_type(SMALL)) for _ in range(2))
        self.assertInstances(one, [ONE], nodes_of(0, 9))
        self.assertInstances(two, [TWO], nodes_of(0, 10))
        big = self.boot(self.of_type(LARGE))
        self.assertInstances(big, [BIG], nodes_of(0, 1))
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [WHOLE])
        self.assertEqual((6, 0, 2), self.vgpus())
        found = counters.read(self.state())
        self.assertEqual((1, 3), (found.claims, found.vgpu_claims))
        self.assertFound()
        self._delete_server(one)
        self.assertInstances(self.boot(self.of_type(SMALL)), [ONE], nodes_of(0, 9))
        self.assertFound()
        self.assertNotIn("ERROR [nova_gpu", self.log())

    def test_several_and_whole_ones_beside_them(self) -> None:
        server = self.boot(self.flavor(vgpus="= 4", vgpu_type=SMALL, gpus="= 1"))
        slots = [slot(FIRST, gi, 0, SMALL) for gi in (9, 10, 11)] + [slot(SECOND, 9, 0, SMALL)]
        nodes = [*nodes_of(0, 9), *nodes_of(0, 10), *nodes_of(0, 11), *nodes_of(1, 9)]
        self.assertEqual(sorted([WHOLE, *slots]), self.recorded(server))
        self.assertEqual(sorted({*nodes, "/dev/nvidia2"}), self.given(server))
        self.assertFound()

    def test_profiles_that_differ_in_a_sign(self) -> None:
        """Those of an RTX PRO 6000"""
        self.divide(FIRST, [(5, 0, mig.WITH_MEDIA), (6, 0, mig.WITHOUT_MEDIA)])
        self.period()
        without = self.boot(self.of_type(mig.WITHOUT_MEDIA))
        self.assertInstances(without, [slot(FIRST, 6, 0, mig.WITHOUT_MEDIA)], nodes_of(0, 6))
        self.boot(self.of_type(mig.WITHOUT_MEDIA), expected_state="ERROR")
        with_media = self.boot(self.of_type(mig.WITH_MEDIA))
        self.assertInstances(with_media, [slot(FIRST, 5, 0, mig.WITH_MEDIA)], nodes_of(0, 5))

    def test_full(self) -> None:
        self.boot(self.of_type(LARGE, 2))
        said = self.boot_refused(self.of_type(LARGE))
        self.assertIn("1 vGPU (type 3g_71gb) asked for, none free", said)
        self.boot_refused(self.of_type(SMALL, 7))
        self.boot(self.of_type(SMALL, 6))


class SharedMemoryTest(alone.Alone, mig.MIGServersTestBase):
    """Two compute instances of one GPU instance: both lead to all of its memory."""

    LAYOUT = ((1, 0, HALF), (1, 1, HALF), (9, 0, SMALL))
    leaves: ClassVar = {"reserved": "the layout stays as it is"}

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.divide(FIRST, self.LAYOUT)

    def test_no_guest_gets_one(self) -> None:
        self.period()
        self.assertEqual((2, 2, 0), self.vgpus(HALF))
        self.assertIn("compute instances that share the memory of their GPU", self.log())
        self.boot_refused(self.of_type(HALF))
        self.assertEqual(4, len([self.boot(self.of_type(SMALL)) for _ in range(4)]))

    def test_where_the_operator_wants_that(self) -> None:
        self.flags(share_gpu_instances=True, group="gpu")
        self.restart_host("host1")
        for number in (0, 1):
            expected = [slot(FIRST, 1, number, HALF)]
            self.assertInstances(self.boot(self.of_type(HALF)), expected, nodes_of(0, 1, number))

    def test_one_that_a_guest_has_stays(self) -> None:
        """Another compute instance was made beside it since; each has it for itself no more."""
        self.divide(FIRST, [(1, 0, HALF)])
        self.period()
        server = self.boot(self.of_type(HALF))
        self.divide(FIRST, self.LAYOUT)
        self.period()
        self.assertEqual((2, 1, 1), self.vgpus(HALF))
        self.boot_refused(self.of_type(HALF))
        self._reboot_server(server, hard=True)
        self.assertInstances(server, [slot(FIRST, 1, 0, HALF)], nodes_of(0, 1))


class DividedUncleanTest(mig.MIGServersTestBase):
    """A card with instances that were not clean is divided into others; one has the id of a clean
    former one."""

    def setUp(self) -> None:
        super().setUp()
        self.commands = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.period()
        self.boot(self.of_type(LARGE))
        small = [self.boot(self.of_type(SMALL)) for _ in range(6)]
        self.commands.stain(SECOND)
        for server in small:
            self._delete_server(server)
        self.period()
        self.divide(SECOND, [(1, 0, LARGE), (2, 0, LARGE)])

    def test_before_a_period_has_seen_it(self) -> None:
        self.boot_refused(self.of_type(LARGE))
        self.assertIn("its card was divided into other MIG instances", self.log())
        self._expect_cleaning()

    def test_while_a_period_looks(self) -> None:
        unavailable = discovery.Discovery.unavailable
        moments: list[str] = []

        def boot(*args: Any) -> Any:
            if not moments:
                moments.append("the new instances are published, and not judged yet")
                self.boot(self.gpu_flavor(1))
                for _ in range(2):
                    self.boot_refused(self.of_type(LARGE))
            return unavailable(*args)

        with mock.patch.object(discovery.Discovery, "unavailable", boot):
            self.period()
        self.assertEqual(1, len(moments))
        self._expect_cleaning()

    def test_claimed_before_it_is_judged_and_started_after(self) -> None:
        """A spawn may take longer than a period: it fetches the image."""
        judge, spawn = proofs.Proofs.judge, driver.GPULibvirtDriver.spawn
        claimed, judged = threading.Event(), threading.Event()

        def judge_late(*args: Any) -> None:
            claimed.wait(60)
            judge(*args)
            judged.set()

        def spawn_late(*args: Any, **kwargs: Any) -> None:
            claimed.set()
            judged.wait(60)
            spawn(*args, **kwargs)

        with (
            mock.patch.object(proofs.Proofs, "judge", judge_late),
            mock.patch.object(driver.GPULibvirtDriver, "spawn", spawn_late),
        ):
            period = threading.Thread(target=self.period)
            period.start()
            self.boot_refused(self.of_type(LARGE))
            period.join(60)
        self.assertTrue(judged.is_set())
        self._expect_cleaning()

    def _expect_cleaning(self) -> None:
        """They are given when they are clean."""
        self.period()
        self.assertEqual((3, 2, 1), self.vgpus(LARGE))
        self.commands.wipe(SECOND)
        self.wait_for_vgpus(3, 0, 1, profile=LARGE)
        server = self.boot(self.of_type(LARGE))
        self.assertEqual(1, len(self.recorded(server)))


class CleaningTest(alone.Alone, mig.MIGServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.commands = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.neighbour, self.server = (self.boot(self.of_type(SMALL)) for _ in range(2))

    def test_by_the_instance_and_never_by_its_card(self) -> None:
        ended = []

        def end(device: model.GPU | Slot, *_: object) -> tuple[list[object], list[object]]:
            ended.append(str(device) if isinstance(device, Slot) else str(device.address))
            return [], []

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.container.guest_processes.end", end))
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_gpu.host.container.guest_processes.may_be_left", lambda *_: True
            )
        )
        self._delete_server(self.server)
        self.assertEqual([TWO], ended)
        self.assertEqual([], self.commands.cards, "the whole card")
        self.assertIn(f"[gpu]clean_command for GPU {TWO}: 10de:2335 vgpu 10/0", self.log())
        self.assertInstances(self.neighbour, [ONE], nodes_of(0, 9))
        self.assertEqual((6, 0, 1), self.vgpus())

    def test_one_that_is_not_clean(self) -> None:
        """It is nobody's until it is, and the others go on."""
        self.commands.stain(FIRST)
        self._delete_server(self.server)
        self.period()
        self.assertIn(f"Failed to remove or clean vGPU {TWO}; ", self.log())
        self.assertEqual((6, 1, 1), self.vgpus())
        self.restart_host("host1")
        self.period()
        self.assertEqual((6, 1, 1), self.vgpus())
        other = self.boot(self.of_type(SMALL))
        self.assertInstances(other, [slot(FIRST, 11, 0, SMALL)], nodes_of(0, 11))
        self.commands.wipe(FIRST)
        self.wait_for_vgpus(6, 0, 2)

    def test_a_command_that_hangs(self) -> None:
        """No period waits for it, and no start of the service."""
        self.flags(clean_timeout=250, group="gpu")
        self.commands.stain(FIRST)
        for server in (self.neighbour, self.server):
            self._delete_server(server)
        self.commands.wipe(FIRST)
        begin = time.monotonic()
        short = mock.patch.object(releases, "_PATIENCE_AT_START_S", 3.0)
        with self.commands.stopped(), short:
            for _ in range(3):
                self.one_period()
            self.restart_host("host1")
            self.one_period()
            self.assertEqual((6, 2, 0), self.vgpus())
        self.assertLess(time.monotonic() - begin, 250, "it waited for the command")
        self.period()
        self.wait_for_vgpus(6, 0, 0)

    def test_state_that_cannot_be_read_as_the_service_starts(self) -> None:
        """Two instances of a card are not clean, and what says so cannot be read for a moment."""
        for code in (errno.EMFILE, errno.EIO, errno.ESTALE):
            self._start_without("gpu-clean", code)
        self._start_without("gpu-vgpus", errno.EIO)

    def _start_without(self, folder: str, code: int) -> None:
        server = self.boot(self.of_type(SMALL))
        self.assertEqual([slot(FIRST, 11, 0, SMALL)], self.recorded(server))
        self.commands.stain(FIRST)
        self._delete_server(server)
        with failing_calls.all_from(self.state() / folder, 1, code):
            self.restart_host("host1")
            _, reserved, used = self.vgpus()
            # Where no proof can be written, those of the other card stay out as well.
            self.assertIn(reserved + used, (3, 6))
            other = self.boot(self.of_type(SMALL), expected_state=None)
        self.period()
        self.assertNotIn(slot(FIRST, 11, 0, SMALL), self.recorded(other))
        self.commands.wipe(FIRST)
        self._delete_server(other)
        self.wait_for_vgpus(6, 0, 2)


class LayoutTest(alone.Alone, test_verify.Verifying, mig.MIGServersTestBase):
    """What an operator does to cards, and what NVML leaves unsaid"""

    def silence(self) -> None:
        self.was_told, self.told = self.told, {}

    def test_nvml_is_silent_from_the_start(self) -> None:
        """Neither whole nor in parts, and the guests that run go on."""
        server = self.boot(self.of_type(SMALL))
        self.silence()
        self.restart_host("host1")
        self.period()
        self.assertIn(
            f"GPU {FIRST} (H200 SXM 141GB) is not offered: the driver has MIG instances of it, but",
            self.log(),
        )
        self.assertInventory(total=6)
        self.assertEqual((1, 0, 1), self.vgpus())
        self.boot_refused(self.of_type(SMALL))
        self._stop_server(server)
        said = self.refused({"os-start": None}, server)
        self.assertIn("NVML does not report them", said[0])
        self.told = self.was_told
        self.period()
        self.period()
        self.assertEqual((6, 0, 1), self.vgpus())
        self._start_server(server)
        self.assertInstances(server, [ONE], nodes_of(0, 9))
        self.assertFound()

    def test_nvml_is_switched_off(self) -> None:
        self.flags(nvml=False, group="gpu")
        self.start_host("host2")
        self.assertInventory(total=6, host="host2")
        asked = self.asked
        self.period("host2")
        self.assertEqual(asked, self.asked)
        self.assertIn("[gpu]nvml and [gpu]nvml_timeout", self.log())

    def test_nvml_falls_silent(self) -> None:
        """What it said holds as long as the driver has the same instances."""
        server = self.boot(self.of_type(SMALL))
        self.silence()
        self.period()
        other = self.boot(self.of_type(SMALL))
        self.assertInstances(other, [TWO], nodes_of(0, 10))
        self.hosts["host1"].set_mig(FIRST, [(1, 0), (9, 0), (10, 0)])
        self.period()
        self.assertIn(
            f"New instances do not get vGPUs of GPU {FIRST}: the driver has the MIG", self.log()
        )
        self.assertEqual((6, 1, 2), self.vgpus())
        third = self.boot(self.of_type(SMALL))
        self.assertInstances(third, [slot(SECOND, 9, 0, SMALL)], nodes_of(1, 9))
        self._reboot_server(server, hard=True)
        self.assertInstances(server, [ONE], nodes_of(0, 9))
        self.told = {**self.was_told, FIRST: LAYOUT[:3]}
        self.period()
        self.assertEqual((5, 0, 3), self.vgpus())

    def test_another_layout(self) -> None:
        """Who has an instance that stays keeps it; that of another is lost."""
        stays, loses = (self.boot(self.of_type(SMALL)) for _ in range(2))
        self.divide(FIRST, [(9, 0, SMALL), (2, 0, LARGE)])
        self.period()
        self.assertIn(
            f"ERROR [nova_gpu.virt.inventory.vgpu_cards] An instance has vGPU {TWO}", self.log()
        )
        self.assertFound((Kind.VGPU_MISSING, TWO))
        self.assertEqual((5, 0, 2), self.vgpus())
        self._reboot_server(stays, hard=True)
        self.assertInstances(stays, [ONE], nodes_of(0, 9))
        self._stop_server(loses)
        said = self.refused({"os-start": None}, loses)
        self.assertIn("the MIG instance is no longer on its card", said[0])
        big = self.boot(self.of_type(LARGE))
        self.assertInstances(big, [slot(FIRST, 2, 0, LARGE)], nodes_of(0, 2))
        self.restart_host("host1")
        self.assertFound((Kind.VGPU_MISSING, TWO))
        self.divide(FIRST, [(9, 0, SMALL), (10, 0, SMALL), (2, 0, LARGE)])
        self.period()
        self._start_server(loses)
        self.assertInstances(loses, [TWO], nodes_of(0, 10))
        self.assertFound()

    def test_an_instance_of_another_profile_in_its_place(self) -> None:
        server = self.boot(self.of_type(LARGE))
        self.divide(FIRST, [(1, 0, SMALL)])
        self.period()
        self._stop_server(server)
        said = self.refused({"os-start": None}, server)
        self.assertIn("the MIG instance is no longer on its card", said[0])

    def test_a_whole_card_that_is_divided_later(self) -> None:
        """It stays the instance's; when that is gone it is given in parts."""
        server = self.boot(self.gpu_flavor(1))
        self.assertGPUs(server, [WHOLE])
        self.divide(WHOLE, LAYOUT)
        self.period()
        self.assertIn(
            f"GPU {WHOLE} (H200 SXM 141GB) stays with the instance that has it", self.log()
        )
        self.assertEqual((6, 0, 0), self.vgpus())
        self.restart_host("host1")
        self.period()
        self.assertEqual((6, 0, 0), self.vgpus())
        self.assertEqual([WHOLE], self.recorded(server))
        self._reboot_server(server, hard=True)
        self._delete_server(server)
        self.leaves = {"reserved": "the card was one of the whole ones"}
        self.period()
        self.assertEqual((9, 0, 0), self.vgpus())
        self.assertInventory(total=6, reserved=1)

    def test_types_that_the_option_does_not_name(self) -> None:
        self.leaves = {"reserved": "what was offered before is given to nobody any more"}
        self.flags(vgpu_types=[], group="gpu")
        self.restart_host("host1")
        self.period()
        self.assertIn("it is divided into MIG instances, of types that [gpu]vgpu_types", self.log())
        self.assertInventory(total=6)
        self.boot_refused(self.of_type(SMALL))

    def test_somebody_elses_domain(self) -> None:
        """It has one instance by its node; the others of the card are free."""
        xml = FOREIGN.replace("/dev/nvidia4", nodes_of(0, 9)[2])
        xml = xml.format(uuid=uuidutils.generate_uuid())
        self.connection().defineXML(xml)
        self.leaves = dict.fromkeys(("domain", "hold", "reserved"), "somebody else's domain")
        self.period()
        self.assertEqual((6, 1, 0), self.vgpus())
        server = self.boot(self.of_type(SMALL))
        self.assertInstances(server, [TWO], nodes_of(0, 10))
