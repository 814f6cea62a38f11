# SPDX-License-Identifier: Apache-2.0
"""An instance without GPUs never fails because of a GPU, whatever state a host's GPUs are in."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import shutil
from unittest import mock

import fixtures
from oslo_messaging import exceptions as messaging_exceptions
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Source, Unavailable
from nova_gpu.host.state import quarantine
from nova_gpu.virt.lifecycle.start import Kind
from tests.fixtures import ailments, hosts, nodes
from tests.fixtures.bases.compute import ONE, ComputeTestCase
from tests.fixtures.compute import Compute
from tests.fixtures.hostile import hostile

ALL = [f"0000:{bus}:00.0" for bus in ("04", "05", "08", "09", "84", "85", "88", "89")]


class PlainInstancesTest(base.BaseTestCase):
    """One instance with a GPU, and the states that its GPU and all others get into"""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.FakeLogger("nova_gpu"))
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.build("fermi-8", root, nodes.Nodes.FILES)
        self.compute = self.useFixture(Compute(self.host, "lxc"))
        provider = self.compute.provider("1091")
        self.compute.spawn(self.compute.instance({"gpus": "1"}, (provider, ALL[0])))
        self.old = self.compute.instance({})
        self.compute.spawn(self.old)
        self.folder = pathlib.Path(CONF.state_path) / "gpu-quarantine"

    def assertPlainInstancesWork(self) -> None:
        self.compute.period()
        new = self.compute.instance({})
        self.assertNotIn("<hostdev", self.compute.spawn(new))
        for instance in (self.old, new):
            with self.compute.gpus.releases.domain_goes(instance):
                del self.compute.libvirt.domains[instance.uuid]
            self.assertNotIn("<hostdev", self.compute.spawn(instance, Kind.REBOOT))
        self.compute.delete(new)
        self.compute.period()

    # The states: with each of them plain instances work.

    def a_card_gone(self) -> None:
        for address in ALL[:2]:
            self.host.remove(address)

    def another_product_in_its_place(self) -> None:
        self.host.add_gpu(ALL[0], "10de", "1023", numa_node=0, minor=40)

    def cards_that_fall_ill(self) -> None:
        ailments.silence(self.host, ALL[2])
        ailments.count_bus_errors(self.host, ALL[3])
        self.compute.period()
        ailments.count_bus_errors(self.host, ALL[3], fatal=1)

    def garbage_in_sysfs(self) -> None:
        (self.host.path(ALL[2]) / "vendor").write_bytes(b"\xff\xfegarbage")
        (self.host.path(ALL[3]) / "numa_node").write_text("")
        (self.host.path(ALL[3]) / "resource").unlink()

    def a_cdi_file_of_garbage(self) -> None:
        for folder in self.host.roots.cdi_spec_dirs:
            (folder / "nvidia.json").write_text('{"cdiVersion": ')

    def quarantined(self) -> None:
        for address in map(PciAddress.parse, ALL):
            entry = quarantine.Entry(address, None, "it is broken", "mend it", "2026-01-01T00:00Z")
            quarantine.put(self.folder, entry)

    def quarantine_unreadable(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.write_text("this should be a folder")

    def no_sysfs(self) -> None:
        self.host.devices.rename(self.host.devices.with_name("away"))

    STATES = (
        *(a_card_gone, another_product_in_its_place, cards_that_fall_ill, garbage_in_sysfs),
        *(a_cdi_file_of_garbage, quarantined, quarantine_unreadable, no_sysfs),
    )

    def test_in_one_bad_state_after_another(self) -> None:
        """None is mended: at the end there are all of them, for a new service too."""
        for state in self.STATES:
            with self.subTest(state=state.__name__):
                state(self)
                self.assertPlainInstancesWork()
                self.compute.restart()
                self.assertPlainInstancesWork()

    def test_while_something_does_not_answer(self) -> None:
        free = self.compute.gpus.assigned.free()
        self.assertEqual(len(ALL) - 1, free)
        bug = RuntimeError("what nobody thought of")
        silent = messaging_exceptions.MessagingTimeout("nobody answers")
        for name, broken in (
            ("nova_gpu.virt.usage.records.read", silent),
            ("nova_gpu.virt.usage.domains.look", exception.DomainsUnreadable("no libvirt")),
            ("nova_gpu.host.pci.discovery.discover", exception.DiscoveryFailed("/sys", "it hangs")),
            ("nova_gpu.virt.health.monitor.Watch.look", bug),
            ("nova_gpu.virt.inventory.card_inventory.CardInventory.publish", bug),
            ("nova_gpu.virt.usage.reader.UsageReader.read_records", bug),
            ("nova_gpu.virt.lifecycle.releases.Releases.resume", bug),
        ):
            with self.subTest(name), mock.patch(name, side_effect=broken):
                self.assertPlainInstancesWork()
                self.compute.restart()  # it did not answer from the start, then
                self.assertPlainInstancesWork()
                # A start asks libvirt itself.
                if not name.endswith((".publish", "domains.look")):
                    self.assertEqual(0, self.compute.gpus.assigned.free())
            self.compute.period()
            self.assertEqual(free, self.compute.gpus.assigned.free(), name)

    def test_what_tenants_write_of_their_images(self) -> None:
        """It never makes a host take GPUs back, and fails nothing."""
        flavor_request, chance = request.of({"gpus": "1"}), random.Random(0)
        for text in (hostile(chance) for _ in range(300)):
            self.assertFalse(flavor_request.gives_back(text, OnStop.RELEASE), text)


class FormerReleaseTest(ComputeTestCase):
    """A release that knew no proofs ran, and was stopped while a guest ended."""

    def setUp(self) -> None:
        super().setUp()
        self.compute.period()
        cards = self.gpus.assigned.card_inventory.cards()
        (self.card,) = (card for card in cards if str(card.address) == ONE)
        self.folder = pathlib.Path(CONF.state_path) / "gpu-quarantine"
        note = quarantine.entry(
            self.card, "it has to be cleaned", "wait", until_boot=None, seen=None
        )
        quarantine.put(self.folder, dataclasses.replace(note, cleaning=True))

    def test_its_note_hides_no_fault(self) -> None:
        fault = Unavailable("Xid 79", "replace it", Source.XID)
        self.gpus.releases.quarantine_fault(self.card, fault, None)
        self.assertEqual("Xid 79", quarantine.load(self.folder)[self.card.address].reason)
