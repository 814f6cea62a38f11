# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Callable
from typing import Any

import fixtures
import libvirt
import nova.privsep
from nova import objects
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.delivery import node_rights
from tests.fixtures import hosts
from tests.fixtures.nodes import Nodes

CARD = "0000:18:00.0"
NODE = "/dev/dri/renderD129"
INSTANCE = objects.Instance(uuid="8d5f2c1e-40b7-4c1d-9d52-7d1b1d4c2a10")


class Libvirt:
    """Its domains' XML; ``looks`` are called in turn whenever they are listed."""

    def __init__(self) -> None:
        self.domains: list[str] = []
        self.looks: list[Callable[[], None]] = []

    def list_guests(self, only_running: bool = True) -> list[Any]:
        found = list(self.domains)
        if self.looks:
            self.looks.pop(0)()
        return [Guest(xml) for xml in found]


class Guest:
    uuid = INSTANCE.uuid

    def __init__(self, xml: str) -> None:
        self._xml = xml

    def get_xml_desc(self) -> str:
        return self._xml


class NodeRightsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        if os.getuid():
            self.skipTest("only root can make device nodes")
        in_process = fixtures.MockPatchObject(nova.privsep.sys_admin_pctxt, "client_mode", False)
        self.useFixture(in_process)
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(root, nodes=Nodes.DEVICES)
        self.host.add_gpu(CARD, "1002", "74a1")
        config = self.useFixture(config_fixture.Config(CONF))
        for name in ("sysfs", "dev", "proc"):
            config.config(group="gpu", **{f"{name}_root": str(getattr(self.host.roots, name))})
        self.libvirt = Libvirt()
        self.rights = node_rights.NodeRights(self.libvirt, self.host.roots)

    def open(self) -> None:
        self.rights.open(INSTANCE, [PciAddress.parse(CARD)], [NODE])

    def define(self) -> None:
        char = f"<source><char>{NODE}</char></source>"
        hostdev = f"<hostdev mode='capabilities' type='misc'>{char}</hostdev>"
        self.libvirt.domains = [f"<domain><devices>{hostdev}</devices></domain>"]

    def is_open(self) -> bool:
        path = self.host.roots.dev / NODE.removeprefix("/dev/")
        return bool(stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH)

    def test_as_long_as_a_guest_is_started_or_has_a_domain(self) -> None:
        self.open()
        self.rights.close()
        self.assertTrue(self.is_open())
        self.define()
        self.rights.started(INSTANCE.uuid)
        self.rights.close()
        self.assertTrue(self.is_open())
        self.libvirt.domains = []
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_a_start_that_came_to_nothing(self) -> None:
        self.open()
        self.rights.started(INSTANCE.uuid)
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_a_guest_that_starts_while_the_domains_are_listed(self) -> None:
        self.open()
        self.rights.started(INSTANCE.uuid)

        def starts() -> None:
            self.open()
            self.define()
            self.rights.started(INSTANCE.uuid)

        self.libvirt.looks = [starts]
        self.rights.close()
        self.assertTrue(self.is_open())
        self.libvirt.domains = []
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_a_libvirt_that_does_not_answer(self) -> None:
        self.open()
        self.rights.started(INSTANCE.uuid)

        def fails() -> None:
            raise libvirt.libvirtError("no connection")

        self.libvirt.looks = [fails]
        self.rights.close()
        self.assertTrue(self.is_open())
        self.rights.close()
        self.assertFalse(self.is_open())

    def test_what_an_earlier_service_has_opened(self) -> None:
        self.open()
        self.define()
        later = node_rights.NodeRights(self.libvirt, self.host.roots)
        later.begin()
        self.assertTrue(self.is_open())
        self.libvirt.domains = []
        node_rights.NodeRights(self.libvirt, self.host.roots).begin()
        self.assertFalse(self.is_open())
