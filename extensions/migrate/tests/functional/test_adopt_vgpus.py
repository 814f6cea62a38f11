# SPDX-License-Identifier: Apache-2.0
"""Instances with vGPUs of stock Nova are taken over as they run, and given back."""

from __future__ import annotations

import fixtures
from nova import objects

from nova_gpu.cmd import holders
from nova_gpu.core.vgpu.vgpu import Slot
from tests.functional import live, profiled, stock
from tests.functional.readings import Server

VGPU = "resources:VGPU"


class Mediated(live.Moving, stock.StockMediatedTestBase):
    HOSTS = ("host1",)

    def boot_by_stock(self, count: int = 1) -> Server:
        return self.boot(self.flavor(**{VGPU: str(count)}))

    def change_driver(self) -> None:
        """Stop nova-compute of host1, and make its options nova-gpu's."""
        self.computes["host1"].stop()
        self.divide(by_stock=False)

    def finish(self) -> None:
        """Take over what is left, and start nova-compute."""
        self.assertEqual(0, self.adopt())
        self.take_driver()
        self.period()

    def finish_leaving(self) -> None:
        self.assertEqual(0, self.leave())
        self.take_driver(stock.STOCK)
        self.period()

    def specs(self, server: Server) -> list[dict[str, str]]:
        """Return the properties of the instance's flavor, and of that in its request spec."""
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server["id"])
        return [self.instance(server).flavor.extra_specs, spec.flavor.extra_specs]

    def shown(self) -> dict[str, tuple[str, ...]]:
        """Return the guests of each card as ``nova-gpu list`` shows them."""
        libvirt = self.computes["host1"].driver._host
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.cmd.this_host.Reader", lambda: libvirt))
        with self.reading("host1") as sources:
            held, _, unknown = holders.read(sources.discovery, sources.discovery.find())
        self.assertIsNone(unknown)
        return {str(function): guests for function, guests in held.items()}

    def assertAdopted(self, server: Server, mediated: list[str]) -> None:
        """Check that the guest has *mediated*, and that all count them for nova-gpu."""
        self.assertEqual(mediated, self.mediated(server))
        slots = [Slot.parse(text) for text in self.recorded(server)]
        self.assertEqual(mediated, sorted(slot.device or "" for slot in slots))
        self.assertEqual({"host1": len(mediated)}, self.allocated(server, "VGPU"))
        words = {"vgpus": f"= {len(mediated)}", "vgpu_type": f"s== {self.TYPE}"}
        self.assertEqual([words] * 2, self.specs(server))

    def assertLeft(self, server: Server, mediated: list[str]) -> None:
        """Check that the guest has *mediated*, and that all count them for stock Nova."""
        self.assertEqual(mediated, self.mediated(server))
        self.assertEqual([], self.recorded(server))
        self.assertEqual([{VGPU: str(len(mediated))}] * 2, self.specs(server))
        self.assertEqual({}, self.inventories())
        self.assertEqual(self.counted_by_stock(mediated), self.allocated(server, "VGPU"))


class AdoptTest(Mediated):
    def test_there_and_back(self) -> None:
        servers = [self.boot_by_stock(2), self.boot_by_stock()]
        had = {server["id"]: self.mediated(server) for server in servers}
        before = {server["id"]: self.guest(server).XMLDesc(0) for server in servers}
        made, defined = self.kernels["host1"].made, self.devices["host1"].defined
        self.assertEqual((3, set(made)), (len(made), defined))
        self.change_driver()
        self.finish()
        for server in servers:
            self.assertEqual(before[server["id"]], self.guest(server).XMLDesc(0))
            self.assertAdopted(server, had[server["id"]])
        self.assertEqual((made, set()), (self.kernels["host1"].made, defined))
        self.assertEqual(set(had), {uuid for guests in self.shown().values() for uuid in guests})
        self.assertEqual([], self.providers())
        self.assertEqual((8, 0, 3), self.inventories()[64])
        self.assertEqual((), self.judge().differences)

        # Nobody has them besides, and they are the same after a start.
        other = self.boot(self.of_type(64, 4))
        self.assertVGPUs(other, self.recorded(other))
        self.boot_refused(self.of_type(64, 2))
        self._delete_server(other)
        self._reboot_server(servers[0], hard=True)
        self.assertAdopted(servers[0], had[servers[0]["id"]])
        self._stop_server(servers[1])
        self._start_server(servers[1])
        self.assertAdopted(servers[1], had[servers[1]["id"]])
        self.kernels["host1"].forget_all()  # the host boots
        self.restart_host("host1")
        self.assertEqual(made, self.kernels["host1"].made)

        self.computes["host1"].stop()
        self.divide()
        self.finish_leaving()
        for server in servers:
            self.assertLeft(server, had[server["id"]])
        self.assertEqual((made, set(made)), (self.kernels["host1"].made, defined))
        self._reboot_server(servers[0], hard=True)
        self.assertEqual(had[servers[0]["id"]], self.mediated(servers[0]))

        # And there again, from where nothing is left of nova-gpu in the domain, and from where
        # something is.
        self.change_driver()
        self.finish()
        for server in servers:
            self.assertAdopted(server, had[server["id"]])
            self._delete_server(server)
        self.assertEqual([], self.kernels["host1"].made)
        self.period()
        self.assertEqual((8, 0, 0), self.inventories()[64])

    def test_a_provider_that_one_still_uses(self) -> None:
        """What is free of it goes to nobody, now and when that instance is gone."""
        stays, goes = self.boot_by_stock(), self.boot_by_stock()
        self.api.post_server_action(stays["id"], {"os-resetState": {"state": "error"}})
        self.change_driver()
        self.assertEqual(1, self.adopt())
        self.take_driver()
        self._delete_server(stays)
        self.periods(2)
        self.leaves = dict.fromkeys(("vgpu", "reserved"), "stock Nova leaves its device")
        (name,) = self.providers()
        (uuid,) = [
            provider["uuid"] for provider in self._get_all_providers() if provider["name"] == name
        ]
        self.assertEqual((4, 4, 0), self.counts(uuid))
        self.assertVGPUs(other := self.boot(self.flavor(**{VGPU: "1"})), self.recorded(other))
        self.computes["host1"].stop()
        self.assertEqual((0, []), (self.adopt(), self.providers()))
        self.take_driver()
        self._delete_server(goes)


class FunctionsTest(stock.StockFunctionsTestBase):
    HOSTS = ("host1",)

    def test_there_and_back(self) -> None:
        server = self.boot(self.flavor(**{"pci_passthrough:alias": "q:1"}))
        before = self.guest(server).XMLDesc(0)
        (function,) = self.rows(server)
        self.assertEqual("unavailable", self.statuses()["0000:3b:00.0"])
        (holding,) = self.look().holdings
        self.assertEqual((), holding.obstacles)
        self.computes["host1"].stop()
        self.give(by_stock=False)
        self.assertEqual(0, self.adopt())
        self.take_driver()
        self.period()
        self.assertEqual(before, self.guest(server).XMLDesc(0))
        self.assertEqual([], self.rows(server))
        self.assertVGPUs(server, profiled.slots(1155, function))
        self.assertEqual((), self.judge().differences)
        # The operator has given another function of the card its type, which nobody gets.
        self.assertEqual((3, 0, 1), self.inventories()[1155])
        self.assertVGPUs(other := self.boot(self.of_type(1155, 2)), self.recorded(other))
        self.assertNotIn(profiled.slots(1155, function)[0], self.recorded(other))
        self._delete_server(other)
        self._reboot_server(server, hard=True)
        self.assertVGPUs(server, profiled.slots(1155, function))

        self.computes["host1"].stop()
        self.give()
        made = self.state() / "gpu-vgpus"
        records = {path: path.read_bytes() for path in made.iterdir()}
        self.assertEqual(0, self.leave())
        for path, content in records.items():  # as a death before the last step leaves them
            path.write_bytes(content)
        self.assertEqual(0, self.leave())
        self.assertEqual([], [*made.iterdir()])
        self.take_driver(stock.STOCK)
        self.period()
        self.assertEqual([function], self.rows(server))
        # The card is in [pci]device_spec too, and instances have functions of it.
        self.assertEqual("unavailable", self.statuses()["0000:3b:00.0"])
        self.boot_refused(self.flavor(**{"pci_passthrough:alias": "whole:1"}))
        self.assertEqual(([], {}), (self.recorded(server), self.allocated(server, "VGPU")))
        self._reboot_server(server, hard=True)
        self.assertEqual([function], self.rows(server))
        self.assertEqual(["0x3b"], self.by_alias(server))
        other = self.boot(self.flavor(**{"pci_passthrough:alias": "q:1"}))
        self.assertNotEqual([function], self.rows(other))
        self.boot_refused(self.flavor(**{"pci_passthrough:alias": "q:1"}))
        self._delete_server(other)

        self.computes["host1"].stop()
        self.give(by_stock=False)
        self.assertEqual(0, self.adopt())
        self.take_driver()
        self.assertVGPUs(server, profiled.slots(1155, function))
        self._delete_server(server)
        self.assertNotIn(function, self.kernels["host1"].made)
        self.leaves = dict.fromkeys(("vgpu", "reserved"), "the operator has given it a type")

    def statuses(self) -> dict[str, str]:
        """Return the status of stock Nova's row of each PCI function."""
        return {row.address: row.status for row in self._rows()}

    def _rows(self) -> list[objects.PciDevice]:
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, "host1", "host1")
        rows = objects.PciDeviceList.get_by_compute_node(self.context, node.id)
        return sorted(rows, key=lambda row: str(row.address))
