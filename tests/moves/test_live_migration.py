# SPDX-License-Identifier: Apache-2.0
"""A guest with vGPUs moves from one host to another while it runs, and its vGPUs' state with it.

The driver is the kernel's sample of a serial line (:mod:`lab.vm.modules`), which gives back
what is written to it. The guest counts over it: it gets no further without what the line has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from lab.vm import cards
from nova_gpu.core.vgpu import vgpu
from tests.moves import base
from tests.vfio import cloud

HERE, THERE = base.HERE, base.THERE
# Of a function that no driver has, the kernel puts the bus in front of a type's name.
TYPE = "pci-1"
_ON_ITS_WAY = "Increasing downtime to"
# How many of the type a card has at most
_SLOTS = 24


class LiveMigrationTest(base.MovesTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.assertMade, {HERE: [], THERE: []})
        self.addCleanup(self.cloud._delete_everything)
        self.one = self.cloud.flavor(vgpus="= 1", vgpu_type=f"s== {TYPE}")

    def test_there_and_back(self) -> None:
        neighbour = self.boot_at(THERE, self.one)
        server = self.boot_at(HERE, self.one)
        before = self.counted(server, HERE)
        taken = self.slot(neighbour, THERE)

        self.live_migrate(server, THERE)

        # On a card where another has one of them
        slot = self.slot(server, THERE)
        self.assertNotEqual(taken, slot)
        self.assertMade({HERE: [], THERE: [self.uuid(neighbour, taken), self.uuid(server, slot)]})
        between = self.counted(server, THERE)
        self.assertGoesOn(before, between)

        self.live_migrate(server, HERE)

        back = self.uuid(server, self.slot(server, HERE))
        self.assertMade({HERE: [back], THERE: [self.uuid(neighbour, taken)]})
        self.assertGoesOn(between, self.counted(server, HERE))

    def test_qemu_refuses(self) -> None:
        """Nobody tells what the device writes in the guest's memory, and QEMU is not told to move
        it all the same."""
        host = self.cloud.hosts[HERE]
        host.tell_qemu()
        self.addCleanup(host.tell_qemu, cloud.MOVABLE)
        server = self.boot_at(HERE, self.one)
        before = self.counted(server, HERE)
        slot = self.slot(server, HERE)

        self.live_migrate(server, THERE, "failed")

        self.assertStays(server, slot, before)
        reason = f"vGPU {slot} cannot be moved: its driver cannot report what it writes"
        self.assertIn(reason, self.told(server))

    def test_the_source_ends_meanwhile(self) -> None:
        """What it leaves is given back when it is back."""
        server = self.boot_at(HERE, self.one)
        before = self.counted(server, HERE)
        slot = self.slot(server, HERE)
        number = len(self.migrations())
        count = self.cloud.compute_log(HERE).count(_ON_ITS_WAY)
        # In MiB a second: it must not be there before the source has ended.
        self.cloud.hosts[HERE].virsh("migrate-setspeed", self.cloud.domain(server), "1")
        self.begin_move(server, THERE)
        self.cloud.wait_for(
            "the guest is on its way",
            lambda: self.cloud.compute_log(HERE).count(_ON_ITS_WAY) > count,
        )

        self.cloud.restart_compute(HERE)
        for host in (HERE, HERE, THERE):
            self.cloud.ask("period", host=host)

        self.assertEqual(1, len(self.migrations()[number:]))
        self.assertStays(server, slot, before)

    # The instance

    def slot(self, server: dict[str, Any], host: str) -> vgpu.Slot:
        """Where its vGPU is, on the host where Nova has it. Not always the first: nova-compute may
        still be at what an instance left that the API does not know any more."""
        self.assertEqual(
            host, self.cloud.admin_api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"]
        )
        (named,) = self.named(server, host)
        slots = [vgpu.Slot.parse(f"{cards.OTHER}/{TYPE}/{number}") for number in range(_SLOTS)]
        (slot,) = (slot for slot in slots if self.uuid(server, slot) == named)
        return slot

    def uuid(self, server: dict[str, Any], slot: vgpu.Slot) -> str:
        return vgpu.device_uuid(server["id"], slot)

    def assertMade(self, by_host: dict[str, list[str]]) -> None:
        """The mediated devices of each host, which Placement knows of, and as many domains: in the
        end, since Nova may still be at what it has told to be done."""
        expected = {
            name: (sorted(uuids), len(uuids), len(uuids)) for name, uuids in by_host.items()
        }
        with contextlib.suppress(AssertionError):
            self.cloud.wait_for("no more and no less", lambda: self.made(by_host) == expected)
        self.assertEqual(expected, self.made(by_host))

    def made(self, by_host: Iterable[str]) -> dict[str, tuple[list[str], int, int]]:
        """Of each host its mediated devices, and how many domains and vGPUs in use there are"""
        names = {self.cloud.hosts[name].hostname(): name for name in by_host}
        used = dict.fromkeys(by_host, 0)
        for provider in self.cloud._get_all_providers():
            count = self.cloud._get_provider_usages(provider["uuid"]).get("VGPU", 0)
            if count:
                used[names[provider["name"].partition("_gpu_")[0]]] += count
        counts = {}
        for name, count in used.items():
            host = self.cloud.hosts[name]
            domains = host.virsh("list", "--all", "--name").split()
            counts[name] = (host.mediated(), len(domains), count)
        return counts

    def assertStays(self, server: dict[str, Any], slot: vgpu.Slot, before: Sequence[int]) -> None:
        """As if nobody had wanted to move it"""
        self.cloud.wait_until(server, "ACTIVE")
        self.cloud.ask("period", host=THERE)
        self.assertEqual(slot, self.slot(server, HERE))
        self.assertMade({HERE: [self.uuid(server, slot)], THERE: []})
        self.cloud.wait_for("it counts on", lambda: self.counted(server, HERE)[-1] > before[-1] + 1)
        numbers = self.counted(server, HERE)
        self.assertEqual(list(range(1, len(numbers) + 1)), numbers)
