# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.host.pci import discovery
from nova_gpu.virt.live_migration import arrivals, compatibility, departures
from tests.fixtures import hosts
from tests.fixtures import nvml as machines
from tests.fixtures.bases import moving
from tests.fixtures.bases.moving import CARD, THERE, WORDS, slots
from tests.fixtures.compute import devices


class ArrivalsTest(moving.MovingTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.moving(slots(THERE, 0, 1), slots(CARD, 2, 3), here="new")
        self.abort = mock.Mock()

    def claimed(self, instance: objects.Instance, mdev_types: dict[str, str], **claim: Any) -> Any:
        data = self.data(
            source_mdev_types=mdev_types, dst_numa_info=objects.LibvirtLiveMigrateNUMAInfo()
        )
        made = SimpleNamespace(claimed_numa_topology=None, abort=self.abort, **claim)
        return arrivals.claimed(self.moves, instance, data, made)

    def refused(self, instance: objects.Instance, mdev_types: dict[str, str], message: str) -> None:
        with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, message):
            self.claimed(instance, mdev_types)
        self.abort.assert_called()  # nobody else waits for what was claimed

    def test_claimed_what_is_of_no_use(self) -> None:
        mdev_types = dict.fromkeys(slots(THERE, 0, 1), WORDS)
        other = dict(mdev_types)
        other[slots(THERE, 1)[0]] = WORDS.replace("a-63", "a-64")
        self.refused(self.instance, other, "on host1: the guest has nvidia-64 of")
        del other[slots(THERE, 1)[0]]
        self.refused(self.instance, other, "has 1 vGPUs, and 2 were claimed")
        gone = self.moving(slots(THERE, 0), slots("0000:d8:00.0", 0), here="new")
        self.refused(gone, dict.fromkeys(slots(THERE, 0), WORDS), "cannot be given")
        far = self.moving(slots(THERE, 0), slots(CARD, 2), here="new")
        far.flavor.extra_specs["hw:pci_numa_affinity_policy"] = "required"
        cells = [objects.InstanceNUMACell(id=1)]
        far.migration_context.new_numa_topology = objects.InstanceNUMATopology(cells=cells)
        self.refused(far, dict.fromkeys(slots(THERE, 0), WORDS), "wants 1 GPUs on NUMA node 1,")

    def test_prepared(self) -> None:
        """Made, and kept although no domain of this host names it yet"""
        arrivals.prepare(self.moves, self.instance)
        made = [device_uuid(self.instance.uuid, Slot.parse(slot)) for slot in slots(CARD, 2, 3)]
        self.assertEqual(sorted(made), self.kernel.made)
        self.assertEqual(devices(slots(CARD, 2, 3)), self.ledger.now.kept_by(self.instance.uuid))
        arrivals.prepare(self.moves, self.plain)


class AskedTest(moving.MovingTestCase):
    def test_refused(self) -> None:
        mine, gone = self.has(*slots(CARD, 0)), self.has(*slots("0000:d8:00.0", 0))
        own = {"target_mdevs": {}, "source_mdev_types": {"a": "nvidia-63"}}
        params = {"vgpus": "1", "gpu:vgpu_params": "enable_profiling=0,enable_uvm=1"}
        fixed = self.compute.instance(params, (self.provider, slots(CARD, 1)[0]))
        for instance, data, message in (
            (mine, self.data(), "takes no running guest with vGPUs"),
            (mine, self.data(**own), "from Nova itself"),
            (gone, self.data(target_mdevs={}), "cannot be given"),
            (fixed, self.data(target_mdevs={}), r"have enable_uvm=1 \(gpu:vgpu_params"),
        ):
            with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, message):
                departures.asked(self.moves, instance, data)


FUNCTION = "nvidia-1155 of 10de:26b9, a virtual function with a type"


class MismatchTest(base.BaseTestCase):
    def test_what_the_guest_has_and_would_get(self) -> None:
        other = FUNCTION.replace("1155", "1156")
        for has, gets, message in (
            (FUNCTION, FUNCTION, "None"),
            (
                f"{FUNCTION}; driver 550.54.16; ECC 1",
                f"{FUNCTION}; driver 550.54.16; ECC 1",
                "None",
            ),
            (FUNCTION, f"{FUNCTION}; driver 535.1; ECC 0", "None"),  # of an older release
            (f"{FUNCTION}; driver 550.54.16", f"{FUNCTION}; ECC 0", "None"),
            (f"{FUNCTION}; ECC 1", f"{other}; ECC 1", f"has {FUNCTION}, and would get {other}"),
            (None, FUNCTION, "the guest has None"),
            (f"{FUNCTION}; ECC 1", f"{FUNCTION}; ECC 0", "has ECC on, and the one that it would"),
            (
                f"{FUNCTION}; driver 550.54.16",
                f"{FUNCTION}; driver 550.127.05",
                "is 550.54.16, and the one there is 550.127.05, which takes no",
            ),
        ):
            self.assertIn(message, str(compatibility.not_alike(has, gets)), (has, gets))


class FactsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        card, _ = machines.l40s()
        self.card = dataclasses.replace(card, more={"ecc_mode": "1 0"})  # off after the next boot
        self.library = self.useFixture(machines.Library(self.card))
        self.host.add_gpu(card.address, "10de", "26b9", driver="nvidia")
        self.address = PciAddress.parse(card.address)

    def facts(self) -> str:
        gpus = discovery.cards_at([self.address], self.host.roots)
        return compatibility.facts_of(gpus, self.host.roots).get(self.address, "")

    def test_of_the_driver_and_the_card(self) -> None:
        """As far as they are known, and nothing of others"""
        self.assertEqual("; driver 570.172.08; ECC 1", self.facts())
        version = self.host.roots.proc / "driver/nvidia/version"
        closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.16  Tue Feb 20 2024\n"
        version.write_text(closed)
        self.assertEqual("; driver 550.54.16; ECC 1", self.facts())
        self.library.say(dataclasses.replace(self.card, more={}))
        self.assertEqual("; driver 550.54.16", self.facts())
        self.config.config(group="gpu", nvml=False)
        version.unlink()
        self.assertEqual("", self.facts())
        version.write_text(closed)
        self.host.add_gpu("0000:af:00.0", "8086", "56c0")
        self.address = PciAddress.parse("0000:af:00.0")
        self.assertEqual("", self.facts())
