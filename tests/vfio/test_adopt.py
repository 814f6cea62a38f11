# SPDX-License-Identifier: Apache-2.0
"""The takeover of running guests that have a card by stock Nova's driver: ``nova-gpu adopt``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from nova import context as nova_context
from nova import objects

from lab.vm import cards
from tests.vfio import base, host

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
class Guest:
    """A guest as libvirt and the kernel have it, with all that it has printed.

    ``process`` is what :func:`tests.vfio.host.guest_process` returns, ``drivers`` are those of the
    card's functions.
    """

    xml: str
    state: str
    domain_id: str
    process: tuple[int, str, dict[str, str]]
    drivers: Sequence[str]
    console: str


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


class AdoptTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.functions = self.host.functions(CARD)
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
        self.cloud.delete(server)
        self.assertReturned(server)
        self.assertEqual(host.HOST_DRIVERS, self.host.drivers(CARD))

    def test_card_that_is_bound_at_boot(self) -> None:
        """Take over one function of a prepared card; the next start gives the guest both."""
        for function in self.functions:
            self.host.bind(function, "vfio-pci")
            self.addCleanup(self.host.bind, function, "")
        self.addCleanup(self.cloud._delete_everything)
        server = self.boot_by_alias("gpu:1")
        self.take_over(server, [CARD])
        self.cloud.reboot(server, "HARD")
        self.assertHasBoth(server)
        self.cloud._stop_server(server)
        self.assertEqual((2, 0, 1), self.counts())
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(CARD))
        self.cloud._start_server(server)
        self.assertHasBoth(server)
        self.assertEqual({base.DISPLAY, base.AUDIO}, set(self.seen_in(server).values()))
        self.cloud.delete(server)
        self.assertReturned(server)
        self.assertEqual(host.VFIO_DRIVERS, self.host.drivers(CARD))

    def boot_by_alias(self, words: str) -> dict[str, Any]:
        """Boot an instance with stock Nova, in a cloud without nova-gpu's providers."""
        self.cloud.kill_compute()
        for provider in self.cloud._get_all_providers():
            if "_gpu_" in provider["name"]:
                self.cloud.placement.delete(f"/resource_providers/{provider['uuid']}")
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
        guest, records = self.look(server), self.records(server)
        self.assertEqual("running", guest.state)
        self.assertEqual(([], 0, functions), (records.cards, records.allocated, records.functions))

        self.cloud.kill_compute()
        self.cloud.flags(compute_driver=OURS)
        self.cloud.flags(device_spec=[], group="pci")
        status, output = self.cloud.command("adopt", "--apply")
        self.assertEqual(0, status, output)
        self.assertEqual(guest, self.look(server))
        # The other card is offered once nova-compute has found it.
        self.assertEqual((2, 1, 1), self.counts())
        self.cloud.start_compute()
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE))

        self.assertEqual(guest, self.look(server))
        self.assertEqual((2, 0, 1), self.counts())
        extra_specs = {"gpus": "= 1", "gpu:model": "s== Tesla M2090"}
        self.assertEqual(Records([CARD], 1, [], [], [extra_specs] * 2), self.records(server))

    def look(self, server: dict[str, Any]) -> Guest:
        domain = self.cloud.domain(server)
        return Guest(
            *(self.host.virsh(word, domain) for word in ("dumpxml", "domstate", "domid")),
            self.host.guest_process(domain),
            self.host.drivers(CARD),
            self.cloud.console(server),
        )

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
