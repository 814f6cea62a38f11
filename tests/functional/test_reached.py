# SPDX-License-Identifier: Apache-2.0
"""What a container that runs can open, whatever its metadata says."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from typing import ClassVar
from unittest import mock

import fixtures
from nova.exception import ComputeResourcesUnavailable
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_gpu.cmd import exporter
from nova_gpu.host.container import contents
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.sources import Kind
from tests.fixtures import cdi, hosts, libvirt
from tests.functional import alone, base, cleaned, mig, test_verify
from tests.functional.base import Server
from tests.functional.mig import FIRST, LARGE, SMALL, nodes_of, slot

OWN, NEXT, THIRD, FOURTH = base.FIRST_SOCKET
LAST = base.SECOND_SOCKET[3]


class ContainerTestBase(alone.Alone, test_verify.Verifying):
    def nodes_in(self, server: Server) -> set[str]:
        """Those of cards that its domain has, by the names that it was started with"""
        every = set(self.domain(server).xpath("devices/hostdev/source/char/text()"))
        return {node for node in every if node in self.nodes["host1"]}

    def made_in(self, server: Server) -> list[str]:
        """The NVIDIA nodes that libvirt has made and that its device cgroup allows"""
        every = self.domain(server).xpath("devices/hostdev/source/char/text()")
        return sorted(set(every) - set(mig.SHARED))

    def errors_of(self, server: Server) -> list[str]:
        """What it reaches, as the log says"""
        said = f"The guest {server['id']} reaches GPU "
        lines = self.log().splitlines()
        found = (line.partition(said)[2].partition(": ")[0] for line in lines if said in line)
        return [each.partition(", ")[0] for each in found]

    def reached(self) -> list[tuple[str, list[str]]]:
        """The notifications that a guest reaches GPUs: of whom, and which"""
        return [
            (each.payload["instance_uuid"], each.payload["addresses"])
            for each in self.sent()
            if each.event_type == "gpu.reached"
        ]

    def sources(self, host: str = "host1") -> gather.Sources:
        """Asked by a command, which has not looked before"""
        return dataclasses.replace(super().sources(host), host=discovery.Discovery())

    def assertOpen(self, device: str, *servers: Server) -> None:
        """The log and the metrics say that these guests can open it, and the metrics of no other"""
        uuids = ", ".join(sorted(server["id"] for server in servers))
        said = f"Several guests can open GPU {device}: {uuids}. "
        self.assertEqual(1, self.log().count(said))
        self.assertEqual({device.partition("/")[0]: len(servers)}, self.shared())

    def grant(self, server: Server, nodes: Sequence[str]) -> None:
        """As ``virsh attach-device`` to its guest"""
        domain = self.guest(server)
        made = "".join(
            "<hostdev mode='capabilities' type='misc'>"
            f"<source><char>{node}</char></source></hostdev>"
            for node in nodes
        )
        domain._xml = domain.XMLDesc(0).replace("</devices>", f"{made}</devices>")

    def shared(self) -> dict[str, int]:
        """Of the metrics: how many guests can open a card, or part of it, that others can too"""
        return self.gauge("nova_gpu_shared")

    def gauge(self, name: str) -> dict[str, int]:
        """Of the metrics: what is not 0, by the card's address"""
        libvirt = self.driver._host
        with self.on("host1"):
            for patched, substitute in (
                ("nova_gpu.cmd.this_host.Reader", lambda: libvirt),
                # Its thread would outlive the test, and who forks waits until all are idle.
                ("nova_gpu.cmd.waiting.within", lambda deadline_s: lambda read: read()),
            ):
                self.useFixture(fixtures.MonkeyPatch(patched, substitute))
            metrics = list(exporter.Metrics(discovery.Discovery(), self.state()).collect())
        (gauge,) = (each for each in metrics if each.name == name)
        return {each.labels["address"]: int(each.value) for each in gauge.samples if each.value}


class ShiftedMinors(ContainerTestBase):
    """The driver is loaded anew while the guest is idle, and numbers its cards otherwise."""

    leaves: ClassVar = {
        "reserved": "a card without a driver, where the numbers have moved up",
    }

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.gpu_flavor(1))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))

    def _shift(self) -> None:
        """One card is not taken by it: those behind move up, and node 4 leads to the next one."""
        self.hosts["host1"].bind(LAST, None)
        self.hosts["host1"].renumber({OWN: 3, NEXT: 4, THIRD: 5, FOURTH: 6})

    def _swap_back(self) -> None:
        self.hosts["host1"].renumber({OWN: 4, NEXT: 5})

    def _swap(self) -> None:
        self.hosts["host1"].renumber({OWN: 5, NEXT: 4})


class ShiftedMinorsTest(ShiftedMinors):
    def assertOthersGet(self, count: int) -> None:
        """That many cards and no more, of which none is what the guest reaches"""
        others = [self.boot(self.gpu_flavor(1)) for _ in range(count)]
        self.assertNotIn(NEXT, [self.recorded(other)[0] for other in others])
        self.boot_refused(self.gpu_flavor(1))

    def test_no_new_guest_gets_it_until_this_one_has_ended(self) -> None:
        """It is reported once, in all places, and nothing is done to the guest."""
        self._shift()
        for _ in range(2):
            self.period()
            self.assertInventory(reserved=2, used=1)
        self.assertEqual([NEXT], self.errors_of(self.server))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))
        self.assertFound((Kind.REACHES_OTHERS, self.server["id"]))
        self.assertEqual({NEXT: 1}, self.gauge("nova_gpu_reached"))
        self.assertEqual([(self.server["id"], [NEXT])], self.reached())
        self.assertOthersGet(5)
        self._reboot_server(self.server, hard=True)
        self.assertEqual({"/dev/nvidia3"}, self.nodes_in(self.server))
        self.period()
        self.assertEqual([NEXT], self.recorded(self.boot(self.gpu_flavor(1))))
        self.assertEqual({}, self.gauge("nova_gpu_reached"))
        self.assertFound()

    def test_what_it_may_have_open_in_a_socket(self) -> None:
        """The numbers are as they were again, and a file that it sent to itself is in no list."""
        self._swap()
        self.period()
        self._swap_back()
        self.period()
        self.assertInventory(reserved=1, used=1)
        self.assertEqual({NEXT: 1}, self.gauge("nova_gpu_reached"))
        self.restart_host("host1")
        self.period()
        self.assertInventory(reserved=1, used=1)
        self.assertOthersGet(6)
        self._stop_server(self.server)
        self.period()
        self.assertEqual([NEXT], self.recorded(self.boot(self.gpu_flavor(1))))

    def test_what_cannot_be_recorded_in_its_domain(self) -> None:
        """The service remembers it until it can be, and a service that comes later reads it."""
        gone = fakelibvirt.libvirtError("Cannot recv data: Connection reset by peer")
        with mock.patch.object(libvirt.Domain, "setMetadata", side_effect=gone):
            self._swap()
            self.period()
            said = f"which GPUs of others the guest {self.server['id']} reaches"
            self.assertIn(said, self.log())
            self._swap_back()
            for _ in range(2):
                self.period()
                self.assertInventory(reserved=1, used=1)
        self.period()
        self.restart_host("host1")
        self.assertInventory(reserved=1, used=1)
        self.assertOthersGet(6)

    def test_it_is_stopped_where_the_operator_wants_that(self) -> None:
        self.flags(stop_guests_that_reach_others=True, group="gpu")
        self._swap()
        self.period()
        said = f"Stopped the guest {self.server['id']}, which reached GPUs that are not its own: "
        self.assertIn(f"{said}{NEXT}. ", self.log())
        self.assertEqual([], self.driver._host.list_guests(only_running=True))
        self.assertInventory(reserved=0, used=1)
        self.assertEqual([NEXT], self.recorded(self.boot(self.gpu_flavor(1))))
        self._stop_server(self.server)  # as Nova does when it sees that
        self._start_server(self.server)
        self.assertEqual({"/dev/nvidia5"}, self.nodes_in(self.server))
        self.assertFound()

    def test_what_is_another_instances(self) -> None:
        """It is said for both, and that one is not started beside it."""
        other = self.boot(self.gpu_flavor(1))
        self._stop_server(other)
        self.assertEqual([NEXT], self.recorded(other))
        self._swap()
        self.period()
        said = f"GPU {NEXT}, which is not its own and which the instances {other['id']} have: "
        self.assertIn(said, self.log())
        self.assertEqual(
            sorted([(self.server["id"], [NEXT]), (other["id"], [NEXT])]), sorted(self.reached())
        )
        self.assertInventory(reserved=0, used=2)
        said = "another guest names it in its domain"
        self.assertIn(said, str(self.refused({"os-start": None}, other)))
        self._stop_server(self.server)
        self._start_server(other)
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(other))

    def test_before_the_period_has_seen_it(self) -> None:
        self._shift()
        self.boot_refused(self.gpu_flavor(1))

    def test_a_service_that_starts_sees_it(self) -> None:
        self._shift()
        self.restart_host("host1")
        self.assertInventory(total=7, reserved=1, used=1)
        self.assertEqual([NEXT], self.errors_of(self.server))

    def test_a_hard_reboot_mends_it(self) -> None:
        self._swap()
        self.period()
        self._reboot_server(self.server, hard=True)
        self.assertEqual({"/dev/nvidia5"}, self.nodes_in(self.server))
        self.period()
        self.assertInventory(reserved=0, used=1)
        self.assertEqual([NEXT], self.recorded(self.boot(self.gpu_flavor(1))))
        self.assertFound()

    def test_a_soft_reboot_is_a_hard_one(self) -> None:
        self._swap()
        self._reboot_server(self.server)
        self.assertEqual({"/dev/nvidia5"}, self.nodes_in(self.server))

    def test_a_stopped_guest_reaches_nothing(self) -> None:
        self._stop_server(self.server)
        self._swap()
        self.period()
        self.assertInventory(reserved=0, used=1)
        other = self.boot(self.gpu_flavor(1))
        self.assertEqual([NEXT], self.recorded(other))
        self._start_server(self.server)
        self.assertEqual({"/dev/nvidia5"}, self.nodes_in(self.server))

    def test_two_that_have_changed_cards(self) -> None:
        """Neither starts with what the other reaches; both do once both are stopped."""
        other = self.boot(self.gpu_flavor(1))
        self._swap()
        self.period()
        self.assertEqual({}, self.shared())  # each can open what the other has, and it cannot
        self.assertNotIn("Several guests can open GPU", self.log())
        self.assertInventory(reserved=0, used=2)
        self._reboot_server(self.server, hard=True)
        said = f"on host1: GPU {OWN} cannot be given: another guest names it in its domain"
        self.assertIn(said, self.log())
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))
        for server in (self.server, other):
            self._stop_server(server)
        for server in (self.server, other):
            self._start_server(server)
        self.assertEqual({"/dev/nvidia5"}, self.nodes_in(self.server))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(other))
        self.assertFound()


class DividedAnewTest(ContainerTestBase, mig.MIGServersTestBase):
    """The operator makes other MIG instances while the guest is idle."""

    def setUp(self) -> None:
        super().setUp()
        self.commands = self.useFixture(cleaned.Cleaned(self))
        self.restart_host("host1")
        self.server = self.boot(self.of_type(LARGE))
        self.assertInstances(self.server, [slot(FIRST, 1, 0, LARGE)], nodes_of(0, 1))

    def _cleaned(self) -> list[str]:
        lines = self.log().splitlines()
        return [
            line.partition("clean_command for GPU ")[2] for line in lines if "_command for" in line
        ]

    def test_two_tenants_never_have_one_instance(self) -> None:
        self.divide(FIRST, [(1, 0, SMALL), (9, 0, SMALL)])
        self.period()
        self.assertEqual([slot(FIRST, 1, 0, SMALL)], self.errors_of(self.server))
        others = [self.boot(self.of_type(SMALL)) for _ in range(4)]
        for other in others:
            self.assertFalse(set(nodes_of(0, 1)[1:]) & set(self.given(other)))
        self.boot_refused(self.of_type(SMALL))
        self._delete_server(self.server)
        # The free one in the period, as its memory may be that of another now; and under its new
        # name the one that the guest had, while no guest has it.
        self.assertEqual(
            [slot(FIRST, 9, 0, SMALL), slot(FIRST, 1, 0, SMALL)],
            [s.partition(": ")[0] for s in self._cleaned()],
        )
        self.assertIn(f"Cannot clean vGPU {slot(FIRST, 1, 0, LARGE)}: its card was", self.log())
        self.period()
        last = self.boot(self.of_type(SMALL))
        self.assertInstances(last, [slot(FIRST, 1, 0, SMALL)], nodes_of(0, 1))

    def test_before_the_period_has_seen_it(self) -> None:
        """It is cleaned as what it was, while nobody else can have it."""
        self.divide(FIRST, [(1, 0, SMALL), (9, 0, SMALL)])
        self._delete_server(self.server)
        self.assertEqual(
            [slot(FIRST, 1, 0, LARGE)], [s.partition(": ")[0] for s in self._cleaned()]
        )
        self.period()
        self.assertFound()

    def test_made_whole_under_two_guests(self) -> None:
        """Both have the card's node. It is said in the next period, and when it is over."""
        other = self.boot(self.of_type(SMALL))
        self.assertInstances(other, [slot(FIRST, 9, 0, SMALL)], nodes_of(0, 9))
        self.period()
        self.assertEqual({}, self.shared())
        self.divide(FIRST, [])
        self.told[FIRST] = None
        self.period()
        self.period()
        self.assertOpen(FIRST, self.server, other)
        self.assertIn(
            (Kind.SHARED_BY_DOMAINS, FIRST),
            [(each.kind, each.subject) for each in self.judge().differences],
        )
        self._stop_server(other)
        self.period()
        self.assertIn(f"Only one guest can open GPU {FIRST} now.", self.log())
        self.assertEqual({}, self.shared())
        self.divide(FIRST, mig.LAYOUT)
        self.period()
        self.assertTrue(self.refused({"os-start": None}, other))  # the first may have all of it
        for server in (self.server, other):
            self._stop_server(server)
        self._start_server(self.server)
        self._start_server(other)
        self.assertInstances(other, [slot(FIRST, 9, 0, SMALL)], nodes_of(0, 9))
        self.assertFound()

    def test_one_instance_under_two_guests(self) -> None:
        """Somebody has edited a domain."""
        other = self.boot(self.of_type(SMALL))
        self.grant(other, nodes_of(0, 1))
        self.assertEqual({FIRST: 2}, self.shared())
        self.period()
        there = slot(FIRST, 1, 0, LARGE)
        self.assertOpen(there, self.server, other)
        self.assertEqual(([], [there]), (self.errors_of(self.server), self.errors_of(other)))
        self._reboot_server(other, hard=True)
        self.period()
        self.assertEqual({}, self.shared())
        self.assertInstances(self.server, [there], nodes_of(0, 1))

    def test_two_instances_while_nobody_tells_what_they_are(self) -> None:
        other = self.boot(self.of_type(SMALL))
        self.assertInstances(other, [slot(FIRST, 9, 0, SMALL)], nodes_of(0, 9))
        told = dict(self.told)
        self.addCleanup(self.told.update, told)
        self.told.clear()
        self.assertEqual({}, self.shared())
        self.assertFound()
        self.grant(other, nodes_of(0, 1))
        self.assertEqual({FIRST: 2}, self.shared())
        shared = (Kind.SHARED_BY_DOMAINS, f"{FIRST}/mig/100")
        self.assertIn(shared, [(each.kind, each.subject) for each in self.judge().differences])
        self.told.update(told)
        self.period()


class SpecificationTest(ContainerTestBase):
    """The host has what nvidia-ctk writes: nvidia-modeset for every container, by which NVIDIA's
    kernel modules open any card (``nvkms_open_gpu`` in src/nvidia-modeset/src/nvkms.c)."""

    def prepare(self, host: hosts.Host) -> None:
        by_owner = functools.partial(contents.contents, owner_uid=os.getuid())
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.container.contents.contents", by_owner))
        self.file = host.roots.cdi_spec_dirs[0] / "nvidia.json"
        self.file.write_text(json.dumps(cdi.nvidia(host.root / "driver", range(8))))
        (host.roots.dev / "nvidia-modeset").touch()

    def assertGiven(self, server: Server) -> None:
        domain = self.domain(server)
        made = set(domain.xpath("devices/hostdev/source/char/text()"))
        expected = {"/dev/nvidia4", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
        self.assertEqual(expected, made)
        targets = domain.xpath("devices/filesystem/target/@dir")
        self.assertIn("/usr/bin/nvidia-smi", targets)

    def test_no_node_that_leads_to_all_cards(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.assertGiven(server)
        self._reboot_server(server, hard=True)
        self.assertGiven(server)

    def test_one_that_a_group_can_write(self) -> None:
        """Whoever is in it could have tenants given any file of the host's."""
        group = 1000 if os.getuid() == 0 else os.getgid()
        os.chown(self.file, -1, group)
        self.file.chmod(0o664)
        self.assertIn("the host's CDI file", self.boot_refused(self.gpu_flavor(1)))
        self.assertIn(f"the group {group} can write to it", self.log())


class RoadTest(ContainerTestBase):
    """A way of Nova's to a running guest that is not overridden"""

    def test_nothing_is_rendered_that_nobody_holds(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        driver, instance = self.driver, self.instance(server)
        said = self.assertRaises(ComputeResourcesUnavailable, self.xml, driver, instance)
        self.assertIn("in a way that this nova-gpu does not know", str(said))
        gpus = driver._gpus
        with gpus.starts.holding(server["id"], gpus.ledger.now.kept_by(server["id"])):
            self.assertIn("/dev/nvidia4", self.xml(driver, instance))

    def test_a_release_that_nobody_has_tried(self) -> None:
        self.assertNotIn("was tested with", self.log())
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.virt.signatures.RELEASES", range(1, 3)))
        self.restart_host("host1")
        self.assertIn("ERROR [nova_gpu.virt.signatures] Nova is ", self.log())
