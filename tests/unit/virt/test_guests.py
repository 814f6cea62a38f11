# SPDX-License-Identifier: Apache-2.0
"""One guest after another on a host of whole cards: each gets what it asks for, clean and alone."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.host.state import quarantine
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.lifecycle.start import Kind
from nova_gpu.virt.usage.ledger import State
from tests.fixtures import cards, hosts, kernel, pci, profiling_kernel, vgpu
from tests.fixtures.compute import Compute, devices, resources
from tests.fixtures.histories import Domain

PORTS = ("0000:02:00.0", "0000:02:01.0")
ONE, OTHER, APART = "0000:03:00.0", "0000:04:00.0", "0000:d8:00.0"


class _ThreeCardsTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        self.build()
        self.compute = Compute(self.host)

    def build(self) -> None:
        for address in (ONE, OTHER, APART):
            self.host.add_gpu(address, "10de", "2335", driver="vfio-pci")

    def begin(self, **options: object) -> None:
        self.useFixture(self.compute)
        self.compute.config(group="gpu", **options)
        self.compute.restart()
        self.compute.gpus.releases._retries.wait()
        self.reset = mock.Mock()
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.cleaning.reset", self.reset))
        self.provider = self.compute.provider("2335")

    def spawn(self, card: str) -> objects.Instance:
        instance = self.compute.instance({"gpus": "= 1"}, (self.provider, card))
        self.compute.spawn(instance)
        return instance

    def inventory(self) -> tuple[int, int]:
        """Total and reserved, as Placement has them after a period"""
        self.compute.period()
        inventory = self.compute.tree.data(self.provider).inventory["PGPU"]
        return inventory["total"], inventory["reserved"]


class GuestsTest(_ThreeCardsTestCase):
    def test_none_starts_without_what_its_flavor_asks_for(self) -> None:
        self.begin()
        instance = self.compute.instance({"gpus": "= 1"})
        refused = (
            nova_exception.BuildAbortException,
            nova_exception.ComputeResourcesUnavailable,
        )
        self.assertRaises(refused, self.compute.spawn, instance)
        self.assertEqual({}, self.compute.libvirt.domains)

    def test_a_card_of_a_guest_has_no_proof_that_it_is_clean(self) -> None:
        """So a service that begins after the guest has gone cleans it."""
        self.begin()
        folder = self.host.root / "state/gpu-clean"
        self.assertEqual(
            [f"{card}.json" for card in (ONE, OTHER, APART)], sorted(os.listdir(folder))
        )
        self.spawn(ONE)
        self.assertEqual([f"{card}.json" for card in (OTHER, APART)], sorted(os.listdir(folder)))

    def test_a_start_that_fails_before_its_guest_is_configured(self) -> None:
        """No guest has touched the card, so it stays clean."""
        self.begin()
        instance = self.compute.instance({"gpus": "= 1"}, (self.provider, ONE))
        starting = self.compute.gpus.starts.starting(instance, Kind.SPAWN)
        with self.assertRaises(ConnectionError), starting:
            raise ConnectionError
        self.compute.delete(instance)
        self.compute.period()
        self.reset.assert_not_called()
        self.assertIn(f"{ONE}.json", os.listdir(self.host.root / "state/gpu-clean"))

    def test_a_reboot_cleans_nothing(self) -> None:
        self.begin()
        instance = self.spawn(ONE)
        with self.compute.gpus.starts.starting(instance, Kind.REBOOT):
            with self.compute.gpus.releases.domain_goes(instance):
                domain = self.compute.libvirt.domains.pop(instance.uuid)
            self.compute.libvirt.domains[instance.uuid] = Domain(instance.uuid, domain.xml)
        self.reset.assert_not_called()

    def test_a_rebuild_in_its_place_keeps_its_card(self) -> None:
        """Also while another look sees that the domain is gone"""
        self.begin()
        instance, ledger = self.spawn(ONE), self.compute.gpus.ledger
        instance.host = CONF.host
        for instance.task_state in (task_states.REBUILDING, task_states.REBUILD_SPAWNING):
            with self.compute.gpus.releases.domain_goes(instance):
                domain = self.compute.libvirt.domains.pop(instance.uuid)
                ledger.saw_domains({})
                self.assertIn(ONE, map(str, ledger.now.devices(State.MOVING)))
            self.assertIn(ONE, map(str, ledger.now.devices(State.MOVING)))
            self.assertEqual([ONE], [*map(str, ledger.now.kept_by(instance.uuid))])
            ledger.end_move(instance.uuid)
            self.compute.libvirt.domains[instance.uuid] = domain
            ledger.saw_domains({instance.uuid: devices([ONE])})

    def test_a_note_of_an_earlier_release_is_newer_than_a_proof(self) -> None:
        """A release that knew no proofs ran, and was stopped while a guest ended."""
        self.begin()
        folder = pathlib.Path(CONF.state_path) / "gpu-quarantine"
        (card,) = (gpu for gpu in self.host.gpus() if str(gpu.address) == ONE)
        note = quarantine.entry(card, "it has to be cleaned", "wait", until_boot=None, seen=None)
        quarantine.put(folder, dataclasses.replace(note, cleaning=True))
        for _ in range(2):
            self.compute.restart()
            self.compute.period()
            self.reset.assert_called_once_with(ONE)
        self.assertEqual({}, quarantine.load(folder))

    def test_what_a_resize_on_the_same_host_has_left_is_cleaned(self) -> None:
        self.begin()
        instance = self.spawn(ONE)
        instance.migration_context = objects.MigrationContext(
            old_resources=resources((self.provider, ONE))
        )
        instance.resources = resources((self.provider, OTHER))
        self.compute.spawn(instance, Kind.MOVE)
        self.reset.assert_not_called()
        self.compute.gpus.releases.confirmed(instance)
        self.reset.assert_called_once_with(ONE)

    def test_cards_that_links_join_are_one_guests(self) -> None:
        self.begin(link_groups=[f"{ONE} {OTHER}"])
        self.assertEqual((3, 0), self.inventory())
        self.spawn(ONE)
        self.assertEqual((3, 1), self.inventory())


class UnseparatedTest(_ThreeCardsTestCase):
    """A switch with two cards, which reach each other past the IOMMU, and a card apart"""

    def build(self) -> None:
        self.host.add_bridge("0000:00:01.0")
        self.host.add_bridge("0000:01:00.0", parent="0000:00:01.0")
        for port, card in zip(PORTS, (ONE, OTHER), strict=True):
            self.host.add_bridge(port, parent="0000:01:00.0")
            self.host.add_gpu(card, "10de", "2335", driver="vfio-pci", parent=port)
        self.host.add_gpu(APART, "10de", "2335", driver="vfio-pci")

    def test_control_cleared_while_it_runs(self) -> None:
        self.begin()
        self.spawn(ONE)
        self.assertEqual((3, 0), self.inventory())
        self.assertNotIn("IOMMU", self.log.output)
        self.host.set_acs(PORTS[1], pci.SEPARATED & ~0x08)
        self.assertEqual((3, 1), self.inventory())
        self.assertIn(
            f"The IOMMU does not separate GPUs {ONE}, {OTHER} (port {PORTS[1]} has ACS off "
            "(completion redirect)); one guest at a time gets them, or guests get virtual "
            "functions of one of them. To",
            self.log.output,
        )
        self.host.set_acs(PORTS[1])
        self.assertEqual((3, 0), self.inventory())

    def test_none_that_can_be_read(self) -> None:
        self.begin()
        for happen, message in (
            (lambda port: self.host.set_acs(port, None), "has no ACS"),
            (lambda port: (self.host.path(port) / "config").unlink(), "has ACS that cannot be"),
        ):
            for port in PORTS:
                happen(port)
            self.compute.restart()
            self.assertEqual((3, 0), self.inventory())
            instance = self.spawn(OTHER)
            self.assertEqual((3, 1), self.inventory())
            self.assertIn(f"(port {', '.join(PORTS)} {message}", self.log.output)
            self.compute.delete(instance)

    def test_guests_that_have_them_stay_and_start_again(self) -> None:
        self.begin()
        instances = [self.spawn(ONE), self.spawn(OTHER)]
        self.host.set_acs(PORTS[0], 0)
        self.assertEqual((3, 0), self.inventory())
        self.compute.restart()
        for instance in instances:
            with self.compute.gpus.starts.starting(instance, Kind.REBOOT):
                pass
        self.assertEqual((3, 0), self.inventory())

    def test_a_guest_has_one_that_is_no_longer_selected(self) -> None:
        self.host.set_acs(PORTS[0], 0)
        self.begin()
        self.spawn(ONE)
        self.compute.config(group="gpu", addresses=[OTHER, APART])
        self.compute.restart()
        self.assertEqual({APART}, set(map(str, self.compute.gpus.assigned.card_inventory.free())))

    def test_option(self) -> None:
        self.host.set_acs(PORTS[0], 0)
        self.begin(allow_ports_without_acs=True)
        self.spawn(ONE)
        self.assertEqual((3, 0), self.inventory())
        self.assertIn("these guests can reach each other's memory", self.log.output)

    def test_interrupts_that_are_not_remapped(self) -> None:
        parameter = "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
        pci.write(self.host.roots.sysfs / parameter, "Y\n")
        self.begin()
        self.assertIn("vfio_iommu_type1.allow_unsafe_interrupts is on: unless", self.log.output)

    def test_what_only_root_can_read(self) -> None:
        """The privileged process reads it."""
        self.begin()
        for port in PORTS:
            (self.host.path(port) / "config").chmod(0)
        with mock.patch("nova_gpu.host.pci.config_space.read", side_effect=PermissionError):
            faults = {port: None for port in PORTS}
            with mock.patch("nova_gpu.privsep.readings.port_faults", return_value=faults) as read:
                self.spawn(ONE)
                self.assertEqual((3, 0), self.inventory())
        read.assert_called_with(list(PORTS))

    def test_commands_of_users_who_cannot_read_it(self) -> None:
        """They take what nova-compute has noted in this boot of the host."""
        self.host.set_acs(PORTS[0], None)
        self.begin()
        for port in PORTS:
            (self.host.path(port) / "config").unlink()
        one, apart = cards.addresses(ONE, APART)
        command = discovery.Discovery()
        command.find()
        self.assertIs(True, command.joined_cards.unseparated(one))
        self.assertIs(False, command.joined_cards.unseparated(apart))
        kernel.boot(self.host, "another-boot")
        command = discovery.Discovery()
        command.find()
        self.assertIsNone(command.joined_cards.unseparated(one))


class FunctionsTest(_ThreeCardsTestCase):
    """A switch with two cards that have two virtual functions each"""

    TYPE = "nvidia-1147"

    def build(self) -> None:
        self.host.add_bridge("0000:00:01.0")
        self.host.add_bridge("0000:01:00.0", parent="0000:00:01.0")
        for port, card in zip(PORTS, (ONE, OTHER), strict=True):
            self.host.add_bridge(port, parent="0000:01:00.0")
            self.host.add_gpu(card, "10de", "26b9", parent=port, totalvfs=2)
            vgpu.add_functions(self.host, card, 2)
        self.useFixture(profiling_kernel.ProfilingKernel(self.host, vgpu.L40S))

    def free(self, **options: object) -> set[str]:
        """The functions that other guests can get when a guest has the first one"""
        self.useFixture(self.compute)
        self.compute.config(group="gpu", **options)
        self.compute.restart()
        provider = self.compute.provider("26b9", self.TYPE)
        words = {"vgpus": "1", "vgpu_type": f"s== {self.TYPE}"}
        slots = [f"{ONE[:-1]}4/{self.TYPE}/0", f"{ONE[:-1]}5/{self.TYPE}/0"]
        slots += [f"{OTHER[:-1]}4/{self.TYPE}/0", f"{OTHER[:-1]}5/{self.TYPE}/0"]
        self.compute.spawn(self.compute.instance(words, (provider, slots[0])))
        self.compute.period()
        usable = self.compute.gpus.assigned.vgpu_inventory.usable(
            provider, devices(slots), frozenset()
        )
        return {str(slot).partition("/")[0] for slot in usable}

    def test_ports_with_acs(self) -> None:
        every = {f"{ONE[:-1]}5", f"{OTHER[:-1]}4", f"{OTHER[:-1]}5"}
        self.assertEqual(every, self.free())

    def test_no_acs(self) -> None:
        """Guests of one card at a time; its functions do not reach each other over the port."""
        self.host.set_acs(PORTS[0], None)
        self.assertEqual({f"{ONE[:-1]}5"}, self.free())

    def test_the_guests_card_is_no_longer_selected(self) -> None:
        self.host.set_acs(PORTS[0], None)
        self.free()
        self.compute.config(group="gpu", addresses=[OTHER])
        self.compute.restart()
        provider = self.compute.provider("26b9", self.TYPE)
        inventory = self.compute.tree.data(provider).inventory["VGPU"]
        self.assertEqual(inventory["total"] - 1, inventory["reserved"], "all but the guest's own")

    def test_option(self) -> None:
        self.host.set_acs(PORTS[0], None)
        self.assertEqual(3, len(self.free(allow_ports_without_acs=True)))


class OneGroupTest(_ThreeCardsTestCase):
    """Two cards in one IOMMU group, as six V100 of a public cloud are in four"""

    ADDRESSES = ("0000:27:00.0", "0000:28:00.0", "0000:44:00.0")

    def build(self) -> None:
        one, other, apart = self.ADDRESSES
        for card, group in ((one, 70), (other, 70), (apart, 71)):
            self.host.add_gpu(
                card,
                *("10de", "2335"),
                driver="vfio-pci",
                iommu_group=group,
                companions=(pci.AUDIO,),
            )

    def test_one_guest_at_a_time(self) -> None:
        self.begin()
        self.assertEqual((3, 0), self.inventory())
        self.spawn("0000:28:00.0")
        self.assertEqual((3, 1), self.inventory())
        self.spawn("0000:44:00.0")
        self.assertEqual((3, 1), self.inventory())
        self.assertIn("GPUs 0000:27:00.0, 0000:28:00.0 are in IOMMU group 70", self.log.output)

    def test_a_card_of_it_that_the_hosts_driver_has(self) -> None:
        self.host.bind("0000:27:00.0", "nouveau")
        self.begin()
        self.assertIn(
            "its IOMMU group 70 has several cards, and not all are bound to vfio-pci: 0000:27:00.0 "
            "(nouveau); bind all of them at boot with nova-gpu host prepare",
            self.log.output,
        )

    def test_a_card_that_is_not_offered(self) -> None:
        """It may be given to other guests by Nova itself."""
        self.begin(addresses=["0000:28:00.0", "0000:44:00.0"])
        self.assertEqual((1, 0), self.inventory())
        self.assertIn("has devices that are not of the card: 0000:27:00.0", self.log.output)
