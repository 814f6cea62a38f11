# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.host.roots import Roots

HOSTS, CONTAINERS = "pid:[4026531836]", "pid:[4026532555]"


class ProcessesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = Roots(proc=pathlib.Path(self.useFixture(fixtures.TempDir()).path))

    def link(self, process: str, target: str) -> None:
        link = self.roots.proc / process / "ns/pid"
        link.parent.mkdir(parents=True)
        link.symlink_to(target)

    def test_where_there_are_no_namespaces(self) -> None:
        self.assertTrue(self.roots.shows_all_processes())

    def test_a_containers(self) -> None:
        self.link("self", CONTAINERS)
        self.assertFalse(self.roots.shows_all_processes())

    def test_the_hosts_proc_in_a_container(self) -> None:
        self.link("self", CONTAINERS)
        self.link("1", HOSTS)
        self.assertTrue(self.roots.shows_all_processes())

    def test_what_cannot_be_read_may_be_a_containers(self) -> None:
        (self.roots.proc / "self/ns/pid").mkdir(parents=True)
        self.assertFalse(self.roots.shows_all_processes())
