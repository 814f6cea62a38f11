# SPDX-License-Identifier: Apache-2.0
"""What a test asks of its cloud, of the guests and of the host."""

from __future__ import annotations

import itertools
import re
import types
import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from lab.vm import cards
from tests.cloud import wire
from tests.vfio import benches, cloud, host

PROVIDER = f"_gpu_{cards.VENDOR_ID}_{cards.PRODUCT_ID}_pci"
DISPLAY = (f"{cards.VENDOR_ID}:{cards.PRODUCT_ID}", "038000")
AUDIO = ("8086:2668", "040300")
_FUNCTION = re.compile(r"^guest: function (\S+) (\S+) (03\d{4}|04\d{4})\r?$", re.MULTILINE)
READY = "guest: ready"
# pci-testdev and pvpanic-pci, which a guest sees without what they pretend to be to the host
_PRETENDER = re.compile(r"^guest: function (\S+) 1b36:00(?:05|11) ", re.MULTILINE)
_MEMORY = re.compile(r"^guest: memory (\S+) (\S+) (\S+)\r?$", re.MULTILINE)
_GIB = 1 << 30
# Address bits of the processor that is emulated, and of the guests'
_BITS = 40
_PLACE = re.compile(r"^guest: place (\S+/(\S+)) (-?\d+)\r?$", re.MULTILINE)
# Else QEMU maps the cards' memory into the guest's, for which the kernel of the VM, whose IOMMU is
# emulated, takes a minute and a half where it is 8 GiB.
_UNMAPPED = "-global vfio-pci.x-no-mmap=on"
# What cards of the tree say that they are: an H100 without a board
_TREE = "2321"
_H100_NVL = {"class": "0x030200", "vendor": "0x10de", "device": f"0x{_TREE}"}
_MOST_PERIODS = 20


class VFIOTestCase(unittest.TestCase):
    """It finds the cloud up and without instances, and the cards with the host."""

    maxDiff = None
    # By the kind of a difference: why the test's very point is to leave it
    leaves: Mapping[str, str] = types.MappingProxyType({})
    _pretends = False

    def setUp(self) -> None:
        self.cloud = cloud.current
        self.api = self.cloud.api
        self.host = self.cloud.host
        self.addCleanup(self._clean_up)

    def _clean_up(self) -> None:
        try:
            self.cloud.expect_agreement(self.leaves)
        finally:
            self.cloud._delete_everything()
        self.assertEqual([], self.domains())
        self.assertEqual([host.HOST_DRIVERS] * 2, [self.host.drivers(card) for card in cards.WHOLE])
        self.assertEqual([], self.host.open_groups())
        self.assertEqual([], self.host.quarantined())
        self.cloud.expect_nothing(self.leaves)

    # The guest

    def seen_in(self, server: dict[str, Any], host: str = wire.HOST) -> dict[str, tuple[str, str]]:
        """(product, class) of the displays and audio devices that the guest sees, by address there,
        since it was started last."""
        self.cloud.wait_for(
            f"{server['id']} is up to its shell", lambda: READY in self.cloud.console(server, host)
        )
        profile = f"libvirt-{server['id']} (enforce)"
        self.assertEqual(benches.IS_CONFINED, profile in self.cloud.hosts[host].profiles())
        console = self.cloud.console(server, host)
        return {match[1]: (match[2], match[3]) for match in _FUNCTION.finditer(console)}

    def reset(self, server: dict[str, Any]) -> None:
        """Reset the machine, as a guest's reboot ends for QEMU, whose process and Nova go on."""
        before = self.cloud.console(server).count(READY)
        self.host.virsh("reset", self.cloud.domain(server))
        self.cloud.wait_for(
            "the guest is up again", lambda: self.cloud.console(server).count(READY) > before
        )

    def places(self, server: dict[str, Any]) -> list[tuple[str, int]]:
        """Where the guest's kernel has the cards of :meth:`become_tree`, by address: the path in
        the tree of PCI Express, and the NUMA node, negative where there is none"""
        console = self.cloud.console(server)
        own = set(_PRETENDER.findall(console))
        places = [
            (path, int(node)) for path, address, node in _PLACE.findall(console) if address in own
        ]
        return sorted(places, key=lambda place: place[0].rpartition("/")[2])

    def large_bars(self, server: dict[str, Any]) -> list[int]:
        """Of those cards, in GiB: none lies over another, or out of the guest's reach."""
        console = self.cloud.console(server)
        own = set(_PRETENDER.findall(console))
        bars = sorted(
            (int(begin, 16), int(end, 16) + 1)
            for address, begin, end in _MEMORY.findall(console)
            if address in own
        )
        for (_, end), (begin, _) in itertools.pairwise(bars):
            self.assertLessEqual(end, begin)
        self.assertEqual([], [end for _, end in bars if end > 1 << _BITS])
        return sorted((end - begin) // _GIB for begin, end in bars)

    # Placement

    def used(self) -> int:
        return self.cloud.used(self.cloud.gpu_provider(PROVIDER))

    def inventory(self) -> dict[str, int]:
        provider = self.cloud.gpu_provider(PROVIDER)
        inventory: dict[str, int] = self.cloud._get_provider_inventory(provider)["PGPU"]
        return inventory

    def free(self, product_id: str) -> int:
        """Return how many cards of a product Placement counts that are not reserved."""
        ending = f"_gpu_{cards.VENDOR_ID}_{product_id}_pci"
        inventories = [
            self.cloud._get_provider_inventory(provider["uuid"]).get("PGPU")
            for provider in self.cloud._get_all_providers()
            if provider["name"].endswith(ending)
        ]
        return sum(
            inventory["total"] - inventory["reserved"] for inventory in inventories if inventory
        )

    def offer(self, product_id: str, count: int) -> None:
        """Run periods until that many cards are offered, each of which is cleaned first.

        Cards that are not offered for another reason end it after some periods.
        """
        for _ in range(_MOST_PERIODS):
            self.cloud._run_periodics()
            if self.free(product_id) >= count:
                return

    # The host

    def pretend(self, attributes: Mapping[str, str], *addresses: str) -> None:
        """Let functions say these things of themselves in sysfs, until the test ends.

        What the host then no longer has would stay in Placement, reserved.
        """
        if not self._pretends:
            self._pretends = True
            self.addCleanup(self.forget_groups)
        for address in addresses:
            self.host.pretend(address, attributes)
            self.addCleanup(self.host.own_up, address, list(attributes))

    def forget_groups(self) -> None:
        """Restart nova-compute of the only host without what Placement has of its GPUs.

        It can be removed only while nova-compute, which caches it, does not run.
        """
        self.cloud.kill_compute()
        self._remove_providers("gpu_")
        self.cloud.start_compute()

    def _remove_providers(self, part: str) -> None:
        for provider in self.cloud._get_all_providers():
            if part in provider["name"]:
                self.cloud.placement.delete(f"/resource_providers/{provider['uuid']}")

    def become_tree(self, held: Sequence[str]) -> None:
        """Let these be cards until the test ends, of which nothing is mapped into a guest."""
        self.pretend(_H100_NVL, *held)
        self.addCleanup(self.host.tell_qemu)
        self.host.tell_qemu(_UNMAPPED)
        self.addCleanup(self.cloud._delete_everything)
        self.offer(_TREE, len(held))

    def be_stock_only(self) -> None:
        """Become a cloud in which nova-gpu never was; nova-compute does not run."""
        self._remove_providers("_gpu_")
        for host_state in self.cloud.host_states.values():
            host_state.forget_nova_gpu()

    def bring_back(self, card: str) -> None:
        """A card that was taken off the bus"""
        self.host.rescan()
        self.cloud.wait_for(
            "the card is back", lambda: self.host.drivers(card) == host.HOST_DRIVERS
        )

    def domains(self) -> list[str]:
        return str(self.host.virsh("list", "--all", "--name")).split()

    def named(self, server: dict[str, Any], host: str = wire.HOST) -> list[str]:
        """The mediated devices of the domain's XML there"""
        xml = self.cloud.hosts[host].virsh("dumpxml", self.cloud.domain(server))
        return sorted(re.findall(r"<source>\s*<address uuid='([^']+)'/>", xml))

    def hostdevs(self, server: dict[str, Any], host: str = wire.HOST) -> list[str]:
        """The host's addresses in the domain's XML there, in its order."""
        xml = self.cloud.hosts[host].virsh("dumpxml", self.cloud.domain(server))
        addresses = []
        for device in re.findall(r"<hostdev [^>]*type='pci'.*?</hostdev>", xml, re.DOTALL):
            source = re.search(r"<source>(.*?)</source>", device, re.DOTALL)
            assert source is not None
            words = dict(re.findall(r"(\w+)='0x(\w+)'", source[1]))
            addresses.append(
                f"{words['domain']}:{words['bus']}:{words['slot']}.{words['function']}"
            )
        return addresses
