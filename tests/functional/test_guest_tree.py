# SPDX-License-Identifier: Apache-2.0
"""The host's PCI Express tree in a KVM guest, from the flavor to the domain."""

from __future__ import annotations

from tests.functional import kvm


class GuestTreeTest(kvm.KVMServersTestBase):
    def test_each_host_shows_its_own(self) -> None:
        """The first host has two cards on each node; the second one shows no node for its."""
        self.start_host()
        server = self.boot(self.flavor(gpus="= 4", hypervisor="KVM"))
        self.assertGPUs(server, kvm.ALL)
        self.assertEqual({"0", "1"}, set(self.expanders(server)))
        domain = self.domain(server)
        self.assertEqual(["0", "1"], domain.xpath("cpu/numa/cell/@id"))
        self.assertEqual(["0", "1"], domain.xpath("numatune/memnode/@nodeset"))

        self.start_host("host2")
        for address in kvm.ALL:
            (self.hosts["host2"].path(address) / "numa_node").write_text("-1\n")
        self.period("host2")
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assertGPUs(server, kvm.ALL, host="host2")
        self.assertEqual([], self.expanders(server, "host2"))
        self.assertEqual([], self.domain(server, "host2").xpath("cpu/numa"))

    def test_words(self) -> None:
        self.start_host()
        for word, nodes in (("required", ["0"]), ("flat", [])):
            server = self.boot(self.flavor(**{"gpus": "= 1", "gpu:guest_topology": word}))
            self.assertEqual(nodes, self.expanders(server))
