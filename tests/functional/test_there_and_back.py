# SPDX-License-Identifier: Apache-2.0
"""A cloud of stock Nova is taken over, used, and given back, host by host."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from nova import objects

from nova_gpu.conf import CONF
from tests.cloud import databases, takeover
from tests.functional import aliases, dump, kvm, live, stock
from tests.functional.base import Server

NIC = {"vendor_id": "8086", "product_id": "1533"}
ALIAS = "pci_passthrough:alias"
# How many devices an instance has; else one
_COUNTS = {
    "pair": 2,
    "other-pair": 2,
    "network": 2,
    "plain": 0,
    "other-plain": 0,
    "stopped-plain": 0,
}

# What differs at the end, by patterns of lines of databases.differences()
_REMAINS = (
    *takeover.REMAINS,
    # On a host: how many cards were cleaned, and empty folders.
    r"host\d:/state/gpu-counters\.json( \(mode\))?: \(nothing\) -> .*",
    r"host\d:/(state/gpu-clean|state/gpu-vgpus|gpu-bindings) \(mode\): \(nothing\) -> drwxr-xr-x",
)
# What differs while nova-gpu has the instances
_MEANWHILE = (
    *_REMAINS,
    *takeover.MEANWHILE,
    r"host\d:/state/gpu-(providers|clean/.*|vgpus/.*)( \(mode\))?: \(nothing\) -> .*",
    # Mediated devices stay; libvirt makes none of them after a boot of the host.
    r"host\d\.mdev\[.*\]\.persistent: True -> False",
)


class Trip(stock.StockTestBase):
    """A cloud that is taken over and given back, host by host."""

    HOSTS = ()

    def setUp(self) -> None:
        self.servers: dict[str, Server] = {}
        super().setUp()

    def go_there_and_back(self) -> None:
        """Take the cloud over and give it back, and compare all that it keeps each time."""
        before = dump.dump(self)
        self.take_over()
        self.assertEqual([], databases.differences(before, dump.dump(self), _MEANWHILE))
        self.give_back()
        self.assertEqual([], databases.differences(before, dump.dump(self), _REMAINS))

    def take_over(self) -> None:
        """Take over the instances, host by host."""
        for host in self.hosts:
            self.computes[host].stop()
            self.choose(stock.OURS)
            self.assertEqual(0, self.adopt(host))
            self.restart_host(host)
            self.period(host)

    def give_back(self) -> None:
        """Give the instances back, host by host."""
        for host in self.hosts:
            self.computes[host].stop()
            self.choose(stock.STOCK)
            self.assertEqual(0, self.leave(host))
            self.restart_host(host)
            self.period(host)

    def choose(self, driver: str) -> None:
        """Set the options that a host has with *driver*."""
        self.flags(compute_driver=driver)

    def boot_on(self, host: str, flavors: Mapping[str, str]) -> None:
        """Boot instances with these names and flavors."""
        for name, flavor in flavors.items():
            self.servers[name] = self.boot(flavor, host=host, name=name)


class CloudOfStock(live.Moving, Trip):
    """Ten instances on three hosts: one with a network function, one that drives its cards."""

    def _setup_compute_service(self) -> None:
        super()._setup_compute_service()
        self.device_spec(aliases.ALL_A2, json.dumps(NIC))

    def setUp(self) -> None:
        super().setUp()
        self.flags(alias=[*CONF.pci.alias, json.dumps({**NIC, "name": "nic"})], group="pci")
        self.start_host("host1")
        self.start_host_with_nic("host2")
        self.start_host_that_drives("host3")
        one, two = (self.flavor(**{ALIAS: f"a2:{count}"}) for count in (1, 2))
        none, network = self.flavor(), self.flavor(**{ALIAS: "nic:1,a2:1"})
        self.boot_on("host1", {"pair": two, "single": one, "stopped": one, "plain": none})
        self.boot_on("host2", {"other-pair": two, "network": network, "paused": one})
        self.boot_on("host3", {"driven": one, "other-plain": none, "stopped-plain": none})
        self.bind_as_libvirt("driven", "host3")
        for name in ("stopped", "stopped-plain"):
            self._stop_server(self.servers[name])
        self.perform(self.servers["paused"], "pause", "PAUSED")
        self.take_driver(stock.STOCK)
        self.periods()

    def start_host_with_nic(self, name: str) -> None:
        cards = aliases.devices()
        ids = {"vend_id": NIC["vendor_id"], "prod_id": NIC["product_id"]}
        cards.add_device("PCI", bus=5, slot=0, function=0, iommu_group=9, numa_node=0, **ids)
        self.start_host(name, pci_info=cards)
        self.hosts[name].add_device("0000:05:00.0", *NIC.values(), class_code=0x020000)

    def start_host_that_drives(self, name: str) -> None:
        self.start_host(name, "cpu-only", pci_info=aliases.devices(kvm.FIRST_SOCKET))
        for address in kvm.FIRST_SOCKET:
            self.hosts[name].add_gpu(address, *aliases.A2.values(), driver="nouveau")

    def bind_as_libvirt(self, name: str, host: str) -> None:
        """Bind the devices of a guest that has started, which are managed, to vfio-pci."""
        for address in self.has(self.servers[name], host):
            (self.hosts[host].path(address) / "driver_override").write_text("vfio-pci\n")
            self.hosts[host].bind(address, "vfio-pci")

    def choose(self, driver: str) -> None:
        super().choose(driver)
        own = [aliases.ALL_A2] if driver == stock.STOCK else []
        self.device_spec(*own, json.dumps(NIC))

    def use(
        self,
        moved: Server,
        shelved: Server,
        one: Mapping[str, str],
        two: Mapping[str, str],
        check: Callable[[], None],
    ) -> None:
        """Do with the instances all that their owners and operators do.

        :param moved: has the only card of host2 that becomes free, *shelved* one of host3's
        :param one: the properties of a flavor with a card, *two* with two
        :param check: is called whenever much has changed
        """
        single, stopped = self.servers["single"], self.servers["stopped"]
        self._reboot_server(single)
        self._reboot_server(self.servers["network"], hard=True)
        self._start_server(stopped)
        self._stop_server(stopped)
        self._resize_server(single, self.flavor(**one))
        check()
        self._revert_resize(single)
        self._migrate_server(moved)
        self._wait_for_state_change(moved, "VERIFY_RESIZE")
        self.confirm(moved, "host2")
        self._shelve_server(shelved, expected_state="SHELVED_OFFLOADED")
        self.periods()  # before that stock Nova counts the card that is given up, too
        self.perform(shelved, "unshelve", "ACTIVE", {"host": "host3"})
        check()
        self.force_down("host3")
        self._evacuate_server(shelved, expected_host="host2")
        self.bring_back("host3")
        self._start_server(shelved)  # before that stock Nova trips over its records of host3
        self.live_migrate(self.servers["plain"])
        self._delete_server(self.servers["pair"])
        self.periods()
        self.servers["pair"] = self.boot(self.flavor(**two))
        check()

    def assertOurs(self) -> None:
        """Check that each instance has its cards by nova-gpu, which nothing contradicts."""
        self.assertHave(lambda server: self.recorded(server) + self.rows(server))
        for name, server in self.servers.items():
            self.assertEqual(["0000:05:00.0"] * (name == "network"), self.rows(server))
            self.assertEqual(len(self.recorded(server)), sum(self.allocated(server).values()))
        for host in self.hosts:
            self.assertEqual((), self.judge(host).differences)

    def assertStocks(self) -> None:
        """Check that each instance has its cards by stock Nova, and nothing is nova-gpu's."""
        self.assertHave(self.rows_here)
        for server in self.servers.values():
            self.assertEqual(([], {}), (self.recorded(server), self.allocated(server)))
        self.assertEqual([{}] * 3, [self.groups(host) for host in self.hosts])

    def assertHave(self, devices: Callable[[Server], list[str]]) -> None:
        """Check that each instance has as many devices as it asks for, which no other has."""
        self.periods()
        held: list[tuple[str, str]] = []
        for name, server in self.servers.items():
            host, own = self.host_of(server), devices(server)
            self.assertEqual(_COUNTS.get(name, 1), len(own), name)
            self.assertEqual(sorted(own), self.in_domain(server, host), name)
            held += [(host, device) for device in own]
        self.assertEqual(len(held), len(set(held)))

    def rows_here(self, server: Server) -> list[str]:
        """Return the functions that stock Nova counts on the instance's host, as it moves too."""
        host = self.host_of(server)
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, host, host)
        found = objects.PciDeviceList.get_by_instance_uuid(self.context, server["id"])
        return [row.address for row in found if row.compute_node_id == node.id]

    def in_domain(self, server: Server, host: str) -> list[str]:
        """Return the first functions of the devices in the guest's domain."""
        devices = self.domain(server, host).findall("devices/hostdev[@type='pci']")
        return sorted(item for item in map(kvm.address, devices) if item.endswith(".0"))


class ThereAndBackTest(CloudOfStock):
    def test_nothing_differs_at_the_end(self) -> None:
        self.go_there_and_back()

    def test_it_is_used_meanwhile_and_afterwards(self) -> None:
        self.assertStocks()
        self.take_over()
        self.assertOurs()
        paused, driven = self.servers["paused"], self.servers["driven"]
        self.perform(paused, "unpause", "ACTIVE")
        self.use(paused, driven, {"gpus": "= 1"}, {"gpus": "= 2"}, self.assertOurs)
        self.give_back()
        self.assertStocks()
        self.use(driven, paused, {ALIAS: "a2:1"}, {ALIAS: "a2:2"}, self.assertStocks)


class WordsTest(Trip):
    """Instances get back the words, the requests and the properties with which they came."""

    HOSTS = ("host1",)
    # The operator's, of hosts
    NODE = "CUSTOM_GPU_NODE"

    def setUp(self) -> None:
        super().setUp()
        self.placement.put(f"/traits/{self.NODE}", None, version="1.6")
        any_node = {**aliases.A2, "name": "a2-any", "numa_policy": "preferred"}
        self.flags(alias=[*CONF.pci.alias, json.dumps(any_node)], group="pci")

    def choose(self, driver: str) -> None:
        super().choose(driver)
        self.device_spec(*([aliases.ALL_A2] if driver == stock.STOCK else []))

    def test_two_aliases_of_one_product(self) -> None:
        words = {
            "one": {ALIAS: "a2:1", f"trait:{self.NODE}": "forbidden"},
            "any": {ALIAS: "a2-any:1"},
            "both": {ALIAS: "a2-any:1, a2:1"},
        }
        self.boot_on("host1", {name: self.flavor(**specs) for name, specs in words.items()})
        self.take_driver(stock.STOCK)
        self.periods()
        self.go_there_and_back()
        for name, server in self.servers.items():
            self._reboot_server(server, hard=True)
            self.assertEqual(words[name], self.instance(server).flavor.extra_specs)
            self.assertEqual(len(self.rows(server)), len(self.has(server)))
        policies = {
            request.alias_name: request.numa_policy
            for request in self.instance(self.servers["both"]).pci_requests.requests
        }
        self.assertEqual({"a2": "legacy", "a2-any": "preferred"}, policies)
