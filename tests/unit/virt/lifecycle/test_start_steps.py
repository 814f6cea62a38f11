# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import pathlib
import unittest
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.guest import devices as devices_told
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt import diagnostics
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.lifecycle.start import STEPS, Kind, Step
from tests.fixtures import cards, nodes
from tests.fixtures.bases import vgpus
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.bases.vgpus import WHOLE as ONE
from tests.fixtures.compute import Compute, devices

FAR = "0000:af:00.0"
PART = f"{vgpus.CARD}/nvidia-63/0"


class StartsTestCase(vgpus.VGPUsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.whole = self.compute.provider("2335")
        self.parts = self.compute.provider("1bb3", "nvidia-63")
        self.starts = self.compute.gpus.starts

    def prepare(self) -> None:
        """Adds a card like the whole one, on the other NUMA node."""
        self.host.add_gpu(FAR, "10de", "2335", driver="vfio-pci", numa_node=1)


class StartingTest(StartsTestCase):
    def test_whole_card_and_vgpu(self) -> None:
        """Held from before anything is made until libvirt knows the guest, and rendered."""
        both = {"gpus": "1", "vgpus": "1"}
        instance = self.compute.instance(both, (self.whole, ONE), (self.parts, PART))
        uuid = device_uuid(instance.uuid, Slot.parse(PART))
        with self.compute.spawning(instance) as xml:
            self.assertEqual(devices([ONE, PART]), self.ledger.now.held_for(instance.uuid))
            self.assertEqual([uuid], self.kernel.made)
            for text in ('<address domain="0x0000" bus="0x3b"', f'uuid="{uuid}"', PART):
                self.assertIn(text, xml)
        self.assertEqual(frozenset(), self.ledger.now.held_for(instance.uuid))
        self.assertEqual(devices([ONE, PART]), self.ledger.now.had_by(instance.uuid))
        self.assertIn(f"Starting with GPUs {ONE}, {PART}", self.log.output)

    def test_devices_that_a_period_has_counted_are_new(self) -> None:
        """One may come before the start of an evacuated guest: Nova prepares its network first."""
        instance = self.compute.instance({"gpus": "1"}, (self.whole, ONE))
        self.compute.period()
        self.assertEqual(devices([ONE]), self.ledger.now.counted_for(instance.uuid))
        with self.starts.starting(instance, Kind.EVACUATION) as start:
            self.assertEqual(devices([ONE]), start.new if start else None)

    def test_what_its_guest_is_told(self) -> None:
        """Whole cards first. Where it finds them is known of those in a tree."""
        both = {"gpus": "2", "vgpus": "1"}
        had = (self.whole, FAR), (self.whole, ONE), (self.parts, PART)
        instance = self.compute.instance(both, *had)
        self.compute.spawn(instance)
        guest_devices = devices_told.of_metadata(instance.system_metadata)
        self.assertEqual([0, 1, 2], [device["index"] for device in guest_devices])
        self.assertEqual(
            ["0000:fd:00.0", "0000:ff:00.0", None], [device["address"] for device in guest_devices]
        )
        self.assertEqual([0, 1, None], [device["numa_node"] for device in guest_devices])
        self.assertEqual("GRID P4-1Q", guest_devices[2]["model"])
        plain = self.compute.instance({})
        self.compute.spawn(plain)
        self.assertEqual([], devices_told.of_metadata(plain.system_metadata))

    def test_diagnostics(self) -> None:
        """A vGPU is shown with its card, and what is gone with its address."""
        instance = self.compute.instance({"vgpus": "1"}, (self.parts, PART))
        xml = self.compute.spawn(instance)
        gone = "0000:d8:00.0/nvidia-63/0"
        named = xml.replace(f'address="{PART}"/>', f'address="{PART}"/><gpu:gpu address="{gone}"/>')
        gpus, shown = self.compute.gpus, mock.Mock(get_xml_desc=lambda: named)
        card = PciAddress.parse(vgpus.CARD)
        gpus.vgpus.cards.reserve({card: cards.reasons("it is in quarantine")})
        answer = diagnostics.gpus(
            shown, gpus.assigned, gpus.vgpus.cards, self.host.roots, {card: 4}
        )
        expected = {
            "gpu0_address": PART,
            "gpu0_product": "10de:1bb3",
            "gpu0_name": "Tesla P4",
            "gpu0_numa_node": 0,
            "gpu0_trouble": "it is in quarantine",
            "gpu0_module": 4,
            "gpu1_address": gone,
        }
        self.assertEqual(expected, answer)


class CompareTest(StartsTestCase):
    def test_other_than_its_flavor_says(self) -> None:
        for specs, had, message in (
            ({}, (self.whole, ONE), "holds 1 GPUs, and its flavor asks for 0.*one with GPUs"),
            ({"gpus": "2"}, (self.whole, ONE), "holds 1 GPUs, and its flavor asks for 2"),
            ({}, (self.parts, PART), "holds 1 vGPUs, and its flavor asks for none.*with vGPUs"),
        ):
            with self.subTest(message):
                self.compute.instances.clear()
                instance = self.compute.instance(specs, had)
                with self.assertRaisesRegex(nova_exception.BuildAbortException, message):
                    self.compute.spawn(instance)
                with self.assertRaisesRegex(nova_exception.InstanceUnacceptable, message):
                    self.compute.spawn(instance, Kind.REBOOT)

    def test_what_may_be_known_no_more_keeps_nobody_from_what_he_has(self) -> None:
        for specs, had, message, rendered in (
            ({"gpus": "1", "gpu:memory_mib": "1"}, (self.whole, ONE), "memory is unknown", "0x3b"),
            (
                {"vgpus": "1", "gpu:memory_mib": "4096"},
                (self.parts, PART),
                "that of nvidia-63 is 1024",
                "mdev",
            ),
        ):
            instance = self.compute.instance(specs, had)
            with self.assertRaisesRegex(nova_exception.BuildAbortException, message):
                self.compute.spawn(instance)
            self.assertIn(rendered, self.compute.spawn(instance, Kind.REBOOT))

    def test_too_far_apart(self) -> None:
        """While it is spawned another host may do better; of a move nobody looks for one."""
        specs = {"gpus": "2", "gpu:topology": "numa"}
        instance = self.compute.instance(specs, (self.whole, ONE), (self.whole, FAR))
        with self.assertRaisesRegex(nova_exception.ComputeResourcesUnavailable, "1 of its GPUs"):
            self.compute.spawn(instance)
        self.assertNotIn("nevertheless", self.log.output)
        self.compute.spawn(instance, Kind.MOVE)
        self.assertIn(
            "Starting the moved instance nevertheless: its flavor requires", self.log.output
        )

    def test_on_another_node_than_its_cells(self) -> None:
        """Only a new guest is refused."""
        cell = objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(id=0)])
        policy = {"gpus": "1", "hw:pci_numa_affinity_policy": "socket"}
        instance = self.compute.instance(policy, (self.whole, FAR), numa_topology=cell)
        message = (
            "wants 1 GPUs on NUMA node 0, .* socket.*2 GPUs are free, 1 on node 0, 1 on node 1"
        )
        with self.assertRaisesRegex(nova_exception.ComputeResourcesUnavailable, message):
            self.compute.spawn(instance)
        for kind in Kind:
            if kind not in (Kind.SPAWN, Kind.EVACUATION):
                self.compute.spawn(instance, kind)
        self.assertEqual(1, self.log.output.count("Starting with GPUs on other NUMA nodes"))

    def test_no_other_host_rebuilds_it(self) -> None:
        """Nova takes the error for one of a guest that runs on, and its disk is gone."""
        for task, error in (
            ("spawning", nova_exception.ComputeResourcesUnavailable),
            ("rebuild_spawning", nova_exception.BuildAbortException),
        ):
            instance = self.compute.instance({"gpus": "1"}, (self.whole, "0000:d8:00.0"))
            instance.task_state, instance.host = task, self.starts.compute_host
            with self.assertRaisesRegex(error, "cannot be given"), self.starts.spawning(instance):
                pass
            with self.assertRaisesRegex(error, "cannot be given"):
                self.starts.add_gpus(instance, vconfig.LibvirtConfigGuest())

    def test_a_part_of_a_card_that_is_gone(self) -> None:
        slot = "0000:d8:00.0/nvidia-63/0"
        instance = self.compute.instance({"vgpus": "1"}, (self.parts, slot))
        message = "no card of this host has it"
        with self.assertRaisesRegex(nova_exception.ComputeResourcesUnavailable, message):
            self.compute.spawn(instance)

    def test_who_would_strand_gpus(self) -> None:
        self.compute.config(group="gpu", reserved_vcpus_per_free_gpu=4)
        left = fixtures.MockPatchObject(InstanceDevices, "left", return_value=(1.0, 1.0))
        self.useFixture(left)
        message = "this host keeps vCPUs and memory for its free GPUs"
        with self.assertRaisesRegex(nova_exception.ComputeResourcesUnavailable, message):
            self.compute.spawn(self.compute.instance({}))
        self.compute.spawn(self.compute.instance({}), Kind.MOVE)
        with fixtures.MockPatchObject(InstanceDevices, "free", return_value=0):
            self.compute.spawn(self.compute.instance({}))


class ContainersTest(HostTestCase):
    NODES = nodes.Nodes.FILES

    def test_soft_reboot_is_a_hard_one(self) -> None:
        """The nodes of its domain may be another card's by now."""
        self.host.add_gpu(ONE, "10de", "2335")
        compute = self.useFixture(Compute(self.host, "lxc"))
        starts = compute.gpus.starts
        instance = compute.instance({"gpus": "1"}, (compute.provider("2335"), ONE))
        plain = compute.instance({})
        self.assertTrue(starts.is_reboot_hard(instance))
        self.assertFalse(starts.is_reboot_hard(plain))
        compute.spawn(instance)
        instance.resources = None
        self.assertTrue(starts.is_reboot_hard(instance), "its domain names one")


TABLE = pathlib.Path(__file__).parents[4] / "doc/source/reference/starts.csv"


class TableTest(unittest.TestCase):
    def test_what_operators_read(self) -> None:
        with TABLE.open(newline="") as file:
            rows = list(csv.DictReader(file))
        shown = {row["Start"]: {step for step in row if row[step] == "yes"} for row in rows}
        self.assertEqual({kind.value: {step.value for step in STEPS[kind]} for kind in Kind}, shown)
        self.assertEqual(["Start", *(step.value for step in Step)], list(rows[0]))
