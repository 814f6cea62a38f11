# SPDX-License-Identifier: Apache-2.0
"""What a container's cards need on the host, over a generated one."""

from __future__ import annotations

import os
import stat

import fixtures
import libvirt
from nova import objects

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.container import guest_processes
from nova_gpu.host.pci import discovery
from nova_gpu.virt.delivery import container_nodes
from tests.fixtures import cards, histories, pci
from tests.fixtures.nodes import Nodes
from tests.fixtures.verbs import VerbTestCase

CARD = "0000:18:00.0"
NODE = "/dev/dri/renderD129"
INSTANCE = objects.Instance(uuid="8d5f2c1e-40b7-4c1d-9d52-7d1b1d4c2a10")


class ContainerNodesTest(VerbTestCase):
    def setUp(self) -> None:
        super().setUp(Nodes.FILES)
        self.config(state_path=str(self.root))
        self.config(group="libvirt", uid_maps=["0:1:1"], gid_maps=["0:1:1"])
        self.host.add_gpu(CARD, "10de", "2335")
        self.reason: str | None = None
        self.way = container_nodes.ContainerNodes(
            self.host.roots, lambda card: self.reason, serves=True
        )

    def card(self) -> GPU:
        (card,) = discovery.cards_at(cards.addresses(CARD), self.host.roots)
        return card

    def test_obstacles(self) -> None:
        self.assertIsNone(self.way.obstacle(self.card()))
        self.reason = "it is the display the host booted on"
        self.assertEqual(self.reason, self.way.obstacle(self.card()))
        self.reason = None
        self.config(group="libvirt", uid_maps=[])
        self.assertIn("root on the host", self.way.obstacle(self.card()) or "")
        self.config(group="gpu", allow_privileged_containers=True)
        self.assertIsNone(self.way.obstacle(self.card()))
        for driver in ("vfio-pci", None):
            self.host.bind(CARD, driver)
            reason = self.way.obstacle(self.card()) or ""
            self.assertIn(driver or "no driver has it", reason)

    def test_a_guest_that_computes_there_still(self) -> None:
        """By what the driver says, if it is asked: no process has it open."""
        left = [guest_processes.Process(812, "python3", "it computes")]
        computing = "nova_gpu.host.container.guest_processes.computing"
        self.useFixture(fixtures.MonkeyPatch(computing, lambda *_: left))
        ended = f"{container_nodes.__name__}.end_processes"
        self.useFixture(fixtures.MonkeyPatch(ended, lambda *_: None))
        error = self.assertRaises(exception.NotCleanedYet, self.way.clean, self.card())
        self.assertEqual("it is still in use: python3 (pid 812): it computes", error.reason)
        self.config(group="gpu", nvml=False)
        self.assertFalse(self.way.clean(self.card()))

    def test_a_search_that_takes_too_long(self) -> None:
        """As where guests have very many processes: the card is cleaned later."""
        self.config(group="gpu", clean_timeout=1)
        pci.write(self.host.path(CARD) / "drm/card7/dev", "1:7\n")
        process = self.host.roots.proc / "812"
        pci.write(process / "status", "Name:\tx\nState:\tS\nUid:\t1 1 1 1\nThreads:\t1\n")
        pci.write(process / "stat", f"812 (x) S {'0 ' * 40}\n")
        (process / "fd").mkdir()
        os.mkfifo(process / "maps")
        error = self.assertRaises(exception.NotCleanedYet, self.way.clean, self.card())
        self.assertIn("did not answer within 1 s", error.reason)


class NodeRightsTest(VerbTestCase):
    def setUp(self) -> None:
        if os.getuid():
            self.skipTest("only root can make device nodes")
        super().setUp(Nodes.DEVICES)
        self.host.add_gpu(CARD, "1002", "74a1")
        self.libvirt = histories.Libvirt()
        self.rights = container_nodes.NodeRights(self.libvirt, self.host.roots)

    def open(self) -> None:
        self.rights.open(INSTANCE, [PciAddress.parse(CARD)], [NODE])

    def define(self) -> None:
        char = f"<source><char>{NODE}</char></source>"
        hostdev = f"<hostdev mode='capabilities' type='misc'>{char}</hostdev>"
        xml = f"<domain><devices>{hostdev}</devices></domain>"
        self.libvirt.domains[INSTANCE.uuid] = histories.Domain(INSTANCE.uuid, xml)

    def is_open(self) -> bool:
        path = self.host.roots.dev / NODE.removeprefix("/dev/")
        return bool(stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH)

    def test_as_long_as_a_guest_is_started_or_has_a_domain(self) -> None:
        self.open()
        with fixtures.MockPatch("nova_gpu.privsep.nodes.open_to_guests", side_effect=OSError):
            self.open()  # of what is open already nobody is asked
        self.rights.close()
        self.assertTrue(self.is_open())
        self.define()
        self.rights.started(INSTANCE.uuid)
        self.rights.close()
        self.assertTrue(self.is_open())
        self.libvirt.domains.clear()
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_a_guest_that_starts_while_the_domains_are_listed(self) -> None:
        self.open()
        self.rights.started(INSTANCE.uuid)

        def starts(**_: bool) -> list[histories.Domain]:
            self.open()
            self.define()
            self.rights.started(INSTANCE.uuid)
            return []

        with fixtures.MockPatchObject(self.libvirt, "list_guests", starts):
            self.rights.close()
        self.assertTrue(self.is_open())
        self.libvirt.domains.clear()
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_a_start_that_came_to_nothing(self) -> None:
        """Once libvirt answers"""
        self.open()
        self.rights.started(INSTANCE.uuid)
        error = libvirt.libvirtError("no connection")
        with fixtures.MockPatchObject(self.libvirt, "list_guests", side_effect=error):
            self.rights.close()
        self.assertTrue(self.is_open())
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_what_an_earlier_service_has_opened(self) -> None:
        self.open()
        self.define()
        later = container_nodes.NodeRights(self.libvirt, self.host.roots)
        later.begin()
        self.assertTrue(self.is_open())
        self.libvirt.domains.clear()
        container_nodes.NodeRights(self.libvirt, self.host.roots).begin()
        self.assertFalse(self.is_open())
