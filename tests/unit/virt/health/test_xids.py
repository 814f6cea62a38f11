# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Unavailable
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, VGPUKind, VGPUType
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.pci import discovery
from nova_gpu.virt.health import xids
from nova_gpu.virt.health.xids import FaultyInstances
from tests.fixtures import ailments, cards, kernel
from tests.fixtures.verbs import VerbTestCase

A, B = "0000:3b:00.0", "0000:af:00.0"
BOOT, NEXT_BOOT = kernel.BOOT_ID, "77777777-30a7-4b02-8d0c-1f36be1a5d80"


class XidsTest(VerbTestCase):
    """The real reader in a real process over a file"""

    def setUp(self) -> None:
        super().setUp()
        kernel.boot(self.host, BOOT)
        for address in (A, B):
            self.host.add_gpu(address, "10de", "2335")
        self.kernel_log = ailments.KernelLog(self.host)
        self.config(state_path=str(self.root))
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.clock = 1000.0
        self.useFixture(fixtures.MonkeyPatch("time.monotonic", lambda: self.clock))
        self.put: list[tuple[str, str, str | None]] = []
        self.error: Exception | None = None
        self.xids = xids.Xids(self.host.roots)

    def _quarantine(self, card: GPU, verdict: Unavailable, until_boot: str | None) -> None:
        if self.error:
            raise self.error
        self.put.append((str(card.address), verdict.reason, until_boot))

    def look(self) -> list[tuple[str, str, str | None]]:
        gpus = discovery.cards_at(cards.addresses(A, B), self.host.roots)
        self.put.clear()
        self.xids.look(gpus, self._quarantine)
        self.clock += CONF.gpu.health_interval
        return list(self.put)

    def test_each_line_once(self) -> None:
        """Once in the interval, by whatever service, in each boot"""
        self.kernel_log.xid(A, 48)
        self.assertEqual([(A, "its driver reported Xid 48 (Some words)", BOOT)], self.look())
        self.clock -= 1
        self.kernel_log.xid("0000:01:00.0", 79)  # not ours
        self.kernel_log.xid(B, 79)
        self.assertEqual([], self.look())
        self.assertEqual([(B, "its driver reported Xid 79 (Some words)", None)], self.look())
        self.xids = xids.Xids(self.host.roots)
        self.assertEqual([], self.look())
        kernel.boot(self.host, NEXT_BOOT)
        self.assertEqual(NEXT_BOOT, self.look()[0][2])

    def test_what_is_not_fatal_is_told(self) -> None:
        self.kernel_log.xid(A, 13)
        self.assertEqual([], self.look())
        self.assertIn(f"GPU {A}: its driver reported Xid 13", self.log.output)
        self.config(fatal_xids=[13], group="gpu")
        self.kernel_log.xid(A, 13)
        self.assertEqual(1, len(self.look()))

    def test_of_a_mig_instance(self) -> None:
        """One that is contained is the instance's alone, another one its card's."""
        self.config(fatal_xids=[94, 95], group="gpu")
        self.kernel_log.xid(A, 94, instance="GPU-I:09 GPU-CI:00")
        self.assertEqual([], self.look())
        self.assertIn(f"New instances do not get MIG instance 9/0 of GPU {A}", self.log.output)
        named = frozenset({(PciAddress.parse(A), "9/0")})
        self.assertEqual(named, xids.Xids(self.host.roots)._faulty.of_boot(BOOT))
        self.assertEqual(frozenset(), self.xids._faulty.of_boot(NEXT_BOOT))
        self.kernel_log.xid(A, 95, instance="GPU-I:09 GPU-CI:00")
        ((card, reason, _),) = self.look()
        self.assertEqual(A, card)
        self.assertIn("Xid 95 of MIG instance 9/0", reason)

    def test_where_it_is_not_read(self) -> None:
        self.kernel_log.xid(A, 79)
        for address in (A, B):
            self.host.bind(address, "vfio-pci")
        self.assertEqual([], self.look())
        self.host.bind(A, "nvidia")
        self.config(fatal_xids=[], group="gpu")
        self.assertEqual([], self.look())
        self.config(fatal_xids=[79], group="gpu")
        self.assertEqual(1, len(self.look()))

    def test_what_could_not_be_quarantine_is_tried_again(self) -> None:
        self.kernel_log.xid(A, 79)
        self.error = OSError(28, "No space left on device")
        self.assertEqual([], self.look())
        self.assertIn("No space", self.log.output)
        self.error = None
        self.assertEqual(1, len(self.look()))

    def test_a_log_that_cannot_be_read_is_said_once(self) -> None:
        (self.host.roots.dev / "kmsg").unlink()
        for _ in range(3):
            self.assertEqual([], self.look())
        self.assertEqual(
            1, self.log.output.count("Cannot read the Xids of this host's NVIDIA GPUs")
        )
        ailments.KernelLog(self.host).xid(A, 79)
        self.assertEqual(1, len(self.look()))


MIG_CARD = PciAddress.parse("0000:19:00.0")
BOOT_ONE, BOOT_TWO = "first", "second"


class FaultyInstancesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "withheld")
        self.faulty = FaultyInstances(self.path)

    def test_what_is_none_of_ours(self) -> None:
        own = '"boot_id": "first"'
        for text in ("", "[]", f"{{{own}}}", f'{{{own}, "instances": [["x"]]}}'):
            self.path.write_text(text)
            with self.assertRaises(ValueError, msg=text):
                self.faulty.of_boot(BOOT_ONE)

    def test_what_cannot_be_written_holds(self) -> None:
        named = frozenset({(MIG_CARD, "9/0")})
        path = self.path.parent / "there" / "withheld"
        faulty = FaultyInstances(path)
        with self.assertRaises(FileNotFoundError):
            faulty.add(BOOT_ONE, named)
        self.assertEqual(named, faulty.of_boot(BOOT_ONE))
        path.parent.mkdir()
        faulty.add(BOOT_ONE, frozenset({(MIG_CARD, "1/*")}))
        self.assertEqual(named | {(MIG_CARD, "1/*")}, FaultyInstances(path).of_boot(BOOT_ONE))

    def test_slots(self) -> None:
        """By their numbers, whatever their size; one that is gone is forgotten."""
        parent = Parent(
            VGPUKind.INSTANCE, {}, {}, numbers={"1g.18gb": (900, 1000), "3g.71gb": (100,)}
        )
        types = {profile: VGPUType(profile) for profile in ("1g.18gb", "3g.71gb")}
        card = SharedCard(cards.card(str(MIG_CARD)), DividedCard(types, {MIG_CARD: parent}))
        there = frozenset({(MIG_CARD, "9/0"), (MIG_CARD, "1/*")})
        elsewhere = (PciAddress.parse("0000:3b:00.0"), "9/0")
        self.faulty.save(BOOT_ONE, there | {(MIG_CARD, "7/0"), elsewhere})
        slots = {str(slot) for slot in self.faulty.slots([card], lambda: BOOT_ONE)}
        self.assertEqual({f"{MIG_CARD}/1g.18gb/900", f"{MIG_CARD}/3g.71gb/100"}, slots)
        self.assertEqual(there | {elsewhere}, self.faulty.of_boot(BOOT_ONE))
        self.assertEqual(frozenset(), self.faulty.slots([card], lambda: BOOT_TWO))
