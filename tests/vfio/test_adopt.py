# SPDX-License-Identifier: Apache-2.0
"""The takeover of running guests that have a card by stock Nova's driver, and the way back.

What an operator types is what :doc:`/admin/migrating` shows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from nova import context as nova_context
from nova import objects

from lab.vm import cards
from nova_gpu.conf import CONF
from tests.cloud import wire
from tests.vfio import base, host, page

# nova-compute's log of a soft reboot that has not become a hard one
_SOFTLY = "Instance soft rebooted successfully"
CARD = cards.WHOLE[0]
STOCK, OURS = "libvirt.LibvirtDriver", "gpu.GPULibvirtDriver"
# One for each function of a card
ALIASES = (
    {"name": "gpu", "vendor_id": cards.VENDOR_ID, "product_id": cards.PRODUCT_ID},
    {"name": "sound", "vendor_id": "8086", "product_id": "2668"},
)
ALIAS = "pci_passthrough:alias"
# The seconds between two reports of nova-compute: adopt waits for two, which must not come.
_REPORT_S, _USUAL_REPORT_S = 2, 10


@dataclasses.dataclass(frozen=True)
class Records:
    """An instance in Nova's database and in Placement.

    ``cards`` and ``allocated`` are nova-gpu's, ``functions`` and ``aliases`` stock Nova's. The
    instance has a flavor, and so has its request spec: ``extra_specs`` are those of both.
    """

    cards: Sequence[str]
    allocated: int
    functions: Sequence[str]
    aliases: Sequence[str | None]
    extra_specs: Sequence[dict[str, str]]


def _options() -> dict[str, Any]:
    """Return the options of nova-compute that its operator changes."""
    return {"compute_driver": CONF.compute_driver, "device_spec": list(CONF.pci.device_spec)}


class AdoptTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.functions = self.host.functions(CARD)
        self.files: dict[str, Mapping[str, Any]] = {}
        self.addCleanup(self._leave_stock)
        self.cloud.flags(compute_driver=STOCK, report_interval=_REPORT_S)
        self.cloud.flags(
            device_spec=[json.dumps({"address": address}) for address in self.functions],
            alias=[json.dumps(alias) for alias in ALIASES],
            group="pci",
        )

    def _leave_stock(self) -> None:
        self.cloud.flags(compute_driver=OURS, report_interval=_USUAL_REPORT_S)
        self.cloud.flags(device_spec=[], alias=[], group="pci")
        self.cloud.restart_compute()
        self.cloud._delete_everything()
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual((2, 0, 0), self.counts())

    def test_card_that_libvirt_has_bound(self) -> None:
        """Take over both functions, which libvirt returns to the host's drivers at the end."""
        server = self.boot_by_alias("gpu:1,sound:1")
        self.take_over(server, self.functions)
        self.reset(server)
        self.assertHasBoth(server)
        self.reboot_softly(server)
        self.assertHasBoth(server)
        self.cloud.delete(server)
        self.assertReturned(server)
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(CARD))

    def test_card_that_is_bound_at_boot(self) -> None:
        """Take over one function of a prepared card, as the page shows it, and give it back.

        The next start by nova-gpu gives the guest both functions, and one by stock Nova the one
        that its alias names.
        """
        for function in self.functions:
            self.host.bind(function, "vfio-pci")
            self.addCleanup(self.host.bind, function, "")
        self.addCleanup(self.cloud._delete_everything)
        self.cloud.flags(device_spec=[json.dumps({"address": CARD})], group="pci")
        server = self.boot_by_alias("gpu:1")
        records = self.records(server)
        self.assertEqual([CARD], records.functions)
        tonight, tomorrow = page.commands("Try it tonight")
        self.type(tonight, server)
        self.assertTakenOver(server)
        self.cloud.reboot(server, "HARD")
        self.assertHasBoth(server)
        self.cloud._stop_server(server)
        self.assertEqual((2, 0, 1), self.counts())
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(CARD))
        self.cloud._start_server(server)
        self.assertHasBoth(server)
        self.assertEqual({base.DISPLAY, base.AUDIO}, set(self.seen_in(server).values()))

        self.type(tomorrow, server)
        self.assertEqual(records, self.records(server))
        self.assertFalse(self.cloud.has_gpu_provider())
        self.assertRaises(wire.Failed, self.host.proof, CARD)
        self.reboot_softly(server)
        self.assertEqual(self.functions, self.hostdevs(server))
        self.cloud.reboot(server, "HARD")
        self.assertEqual([CARD], self.hostdevs(server))
        self.cloud._stop_server(server)
        self.cloud._start_server(server)
        self.assertEqual([CARD], self.hostdevs(server))
        self.assertEqual([base.DISPLAY], list(self.seen_in(server).values()))
        self.cloud.delete(server)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(CARD))
        self.assertRaises(wire.Failed, self.host.proof, CARD)

    def boot_by_alias(self, words: str) -> dict[str, Any]:
        """Boot an instance with stock Nova, in a cloud without nova-gpu's providers."""
        self.cloud.kill_compute()
        self.be_stock_only()
        self.cloud.start_compute()
        server = self.cloud.boot(self.cloud.flavor(**{"pci_passthrough:alias": words}))
        self.assertFalse(self.cloud.has_gpu_provider())
        return server

    def take_over(self, server: dict[str, Any], functions: Sequence[str]) -> None:
        """Stop nova-compute, take over the instance, and start nova-compute as nova-gpu's.

        :param functions: those that the guest has by stock Nova
        """
        seen = self.seen_in(server)
        self.assertEqual(len(functions), len(seen))
        self.assertEqual(functions, self.hostdevs(server))
        guest, records = self.look(), self.records(server)
        self.assertEqual("running", self.host.virsh("domstate", self.cloud.domain(server)))
        self.assertEqual(([], 0, functions), (records.cards, records.allocated, records.functions))

        self.cloud.kill_compute()
        self.cloud.flags(compute_driver=OURS)
        self.cloud.flags(device_spec=[], group="pci")
        status, output = self.cloud.command("adopt", "--apply", "--with-gpufilter")
        self.assertEqual(0, status, output)
        self.assertEqual(guest, self.look())
        # The other card is offered once nova-compute has found it.
        self.assertEqual((2, 1, 1), self.counts())
        self.cloud.start_compute()
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual(guest, self.look())
        self.assertTakenOver(server)

    def assertTakenOver(self, server: dict[str, Any]) -> None:
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual((2, 0, 1), self.counts())
        extra_specs = {"gpus": "= 1", "gpu:model": "s== Tesla M2090"}
        self.assertEqual(Records([CARD], 1, [], [], [extra_specs] * 2), self.records(server))

    def type(self, commands: Sequence[str], server: dict[str, Any]) -> None:
        """Do what is typed on the host; the guest does not notice."""
        self.seen_in(server)
        guest = self.look()
        for command in commands:
            self._do(command.split())
            self.assertEqual(guest, self.look(), command)

    def _do(self, words: Sequence[str]) -> None:
        match words:
            case ["cp", source, target]:
                self.files[target] = self.files.get(source) or _options()
            case ["vi", name]:
                self.files[name] = {"compute_driver": OURS, "device_spec": []}
            case ["systemctl", "stop", "nova-compute"]:
                self.cloud.kill_compute()
            case ["systemctl", "start", "nova-compute"]:
                self.cloud.start_compute()
                self.cloud._run_periodics()
            case ["nova-gpu", *arguments]:
                status, output = self.cloud.command(*arguments)
                self.assertEqual(0, status, output)
            case _:
                self.assertEqual(["pip", "install"], words[:2])  # nova-gpu is there
        if page.CONFIGURATION in self.files:
            options = self.files[page.CONFIGURATION]
            self.cloud.flags(compute_driver=options["compute_driver"])
            self.cloud.flags(device_spec=options["device_spec"], group="pci")

    def reboot_softly(self, server: dict[str, Any]) -> None:
        """Reboot the instance, whose guest shuts down when it is asked to."""
        domain = self.cloud.domain(server)
        done = self.cloud.compute_log().count(_SOFTLY)
        before = self.host.guest_process(domain)
        self.host.answer_power_button(domain)
        self.cloud.reboot(server, "SOFT")
        self.seen_in(server)
        self.assertNotEqual(before[:2], self.host.guest_process(domain)[:2])
        self.assertEqual(done + 1, self.cloud.compute_log().count(_SOFTLY))

    def look(self) -> tuple[Any, Sequence[str]]:
        """Return how the guest is, and which drivers the functions of its card have."""
        return self.cloud.kept[wire.HOST].guests(), self.host.drivers(CARD)

    def records(self, server: dict[str, Any]) -> Records:
        context = nova_context.get_admin_context()
        attributes = ["flavor", "pci_requests", "resources"]
        instance = objects.Instance.get_by_uuid(context, server["id"], expected_attrs=attributes)
        spec = objects.RequestSpec.get_by_instance_uuid(context, server["id"])
        rows = objects.PciDeviceList.get_by_instance_uuid(context, server["id"])
        requests = [*instance.pci_requests.requests, *spec.pci_requests.requests]
        return Records(
            [resource.identifier for resource in instance.resources or ()],
            self.cloud.allocated(server),
            sorted(row.address for row in rows),
            [request.alias_name for request in requests],
            [instance.flavor.extra_specs, spec.flavor.extra_specs],
        )

    def counts(self) -> tuple[int, int, int]:
        """Return how many cards of the group there are, and are reserved and used."""
        inventory = self.inventory()
        return inventory["total"], inventory["reserved"], self.used()

    def assertHasBoth(self, server: dict[str, Any]) -> None:
        self.assertEqual(self.functions, self.hostdevs(server))
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(CARD))
        self.assertEqual((2, 0, 1), self.counts())

    def assertReturned(self, server: dict[str, Any]) -> None:
        """Check that the card was reset after the instance, and is offered."""
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))
        self.assertEqual((2, 0, 0), self.counts())
        proof = json.loads(self.host.proof(CARD))
        self.assertEqual(server["id"], proof["after"])
        self.assertIn("reset", proof["by"])
