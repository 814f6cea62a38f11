# SPDX-License-Identifier: Apache-2.0
"""Which steps are taken and what they come to; the steps have tests of their own."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import DeliveryMode
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.roots import Roots
from nova_gpu.virt import threads
from nova_gpu.virt.delivery import (
    binding,
    container_nodes,
    pci_aliases,
    pci_passthrough,
    peer_access,
    vgpu_deliveries,
)
from nova_gpu.virt.lifecycle import cleaning
from nova_gpu.virt.usage import ledger
from tests.fixtures import cards, hosts

CARD = "0000:88:00.0"
UNUSED_UIDS = ["0:1998000000:1000"]


class CleaningTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(group="libvirt", uid_maps=UNUSED_UIDS)
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {"end_processes": [], "run_command": (0, "")}
        for verb in ("reset", "end_processes", "run_command"):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_gpu.privsep.cleaning.{verb}", self._stand_in(verb))
            )
        self.log = self.useFixture(fixtures.FakeLogger())
        self.roots = Roots(proc=pathlib.Path(self.useFixture(fixtures.TempDir()).path))

    def _stand_in(self, verb: str) -> Any:
        def call(address: str) -> Any:
            self.calls.append(f"{verb} {address}")
            answer = self.answers.get(verb)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def cleaner(self, mode: DeliveryMode, roots: Roots) -> cleaning.Cleaning:
        if mode is DeliveryMode.LXC:
            containers = container_nodes.ContainerNodes(roots, lambda _: None, serves=True)
            return cleaning.Cleaning(containers, roots)
        bind = self._stand_in("bind")
        self.useFixture(
            fixtures.MockPatchObject(
                binding.Bindings, "give_to_guests", lambda _, card: bind(card.address)
            )
        )
        noted = ledger.Ledger()
        machines = pci_passthrough.PCIPassthrough(
            *(roots, pci_aliases.DeviceSpec(()), roots.proc / "unbound", noted),
            peer_access.Peers(roots),
        )
        return cleaning.Cleaning(machines, roots)

    def clean(self, mode: DeliveryMode) -> None:
        was_reset = self.cleaner(mode, self.roots).clean(cards.card(CARD))
        self.assertEqual(mode is DeliveryMode.PCI, was_reset)

    def refused(self, mode: DeliveryMode) -> exception.NotClean:
        error = self.assertRaises(exception.NotClean, self.clean, mode)
        self.assertEqual(CARD, error.address)
        self.assertTrue(error.remedy)
        return error

    def test_steps(self) -> None:
        """Nobody is woken for nothing; what is left of a guest is ended and named."""
        self.clean(DeliveryMode.LXC)
        self.assertEqual([], self.calls)
        self.clean(DeliveryMode.PCI)
        self.assertEqual([f"bind {CARD}", f"reset {CARD}"], self.calls)
        self.calls.clear()
        self.config(group="libvirt", uid_maps=[])
        self.answers["end_processes"] = ["/usr/bin/miner (pid 812)"]
        self.clean(DeliveryMode.LXC)
        self.assertEqual([f"end_processes {CARD}"], self.calls)
        self.assertIn(f"/usr/bin/miner (pid 812), which still had GPU {CARD} open", self.log.output)

    def test_instance(self) -> None:
        """By its slot in everything: others have the rest of the card."""
        self.config(group="libvirt", uid_maps=[])
        self.config(group="gpu", clean_command=["/bin/true"])
        host = hosts.Host(self.roots.proc.parent / "host")
        host.add_gpu(CARD, "10de", "2335", mig=[(9, 0)])
        cleaner = self.cleaner(DeliveryMode.LXC, host.roots)
        slot = Slot.parse(f"{CARD}/1g.18gb/900")
        self.answers["end_processes"] = ["/usr/bin/miner (pid 812)"]
        way = container_nodes.ContainerNodes(host.roots, lambda _: None, serves=True)
        cleaner.clean_part(way, slot)
        self.assertEqual([f"end_processes {slot}", f"run_command {slot}"], self.calls)
        self.assertIn(f"/usr/bin/miner (pid 812), which still had GPU {slot} open", self.log.output)
        self.answers["run_command"] = (3, "no such instance")
        error = self.assertRaises(exception.NotClean, cleaner.clean_part, way, slot)
        self.assertEqual(str(slot), error.address)
        # What its owner destroys NVIDIA's driver cleans.
        self.calls.clear()
        mediated = vgpu_deliveries.MediatedDevices(host.roots)
        cleaner.clean_part(mediated, slot)  # which its driver cleans
        host.set_mig(CARD, [(10, 0)])
        cleaner.clean_part(way, slot)
        self.assertEqual([], self.calls)
        self.assertFalse(way.is_there(slot, "one", None))
        with self.assertRaisesRegex(exception.DeviceUnavailable, vgpu.LOST):
            way.prepare(slot, "one")

    def test_what_cannot_be_told_is_not_clean(self) -> None:
        for verb, error, reason in (
            ("bind", exception.BindingFailed(CARD, "in use", "end that"), "in use"),
            ("bind", OSError("no daemon"), "could not be cleaned: OSError('no daemon')"),
            ("reset", exception.NotClean(CARD, "it is mute", "boot"), "it is mute"),
            ("reset", ValueError("privsep"), "could not be cleaned: ValueError('privsep')"),
        ):
            with fixtures.MockPatchObject(self, "answers", {verb: error}):
                self.assertIn(reason, self.refused(DeliveryMode.PCI).reason)

    def test_half_of_the_daemon_is_left_to_nova(self) -> None:
        """Of four cards two are cleaned at once, and never three."""
        self.config(group="nova_sys_admin", thread_pool_size=4)
        two, at_once, most = threading.Barrier(2, timeout=200), [], []

        def reset(address: str) -> None:
            at_once.append(address)
            most.append(len(at_once))
            two.wait()
            at_once.remove(address)

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.cleaning.reset", reset))
        cleaner = self.cleaner(DeliveryMode.PCI, self.roots)
        threads.for_each(cleaner.clean, [cards.card(f"0000:0{n}:00.0") for n in range(4)])
        self.assertEqual(2, max(most))
