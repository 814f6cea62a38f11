# SPDX-License-Identifier: Apache-2.0
"""Which mediated devices are whose, by the records of stock Nova and of nova-gpu."""

from __future__ import annotations

from typing import Any

from lxml import etree

from nova_gpu.core import names
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.host.vgpu import mdev
from nova_gpu_migrate.virt import providers
from tests.functional import divided, held, stock
from tests.functional.base import Server

_CARDS = (divided.FIRST, divided.SECOND)
# How many of its type a card carries
_EACH = 2
_VGPU = "resources:VGPU"


class HeldMediatedTestBase(held.HeldTestBase, stock.StockMediatedTestBase):
    """Two cards with room for two vGPUs each, by stock Nova's mediated devices or by nova-gpu."""

    TYPE = "nvidia-65"

    def start_host(self, name: str = "host1", machine: str = "", **kwargs: Any) -> None:
        stock.StockMediatedTestBase.start_host(self, name, machine, **kwargs)

    def give_to(self, *, is_stock: bool) -> None:
        self.device_spec()
        self.divide(by_stock=is_stock)
        self.flags(vgpu_types=[self.TYPE], group="gpu")

    def words(self, count: int, *, is_stock: bool, and_more: bool = False) -> dict[str, str]:
        if is_stock:
            return {_VGPU: str(count)}
        return {names.VGPUS: f"= {count}", names.VGPU_TYPE: f"s== {self.TYPE}"}

    def by_domain(self) -> dict[str, set[str]]:
        """Return by instance the uuids of the mediated devices that its domain has."""
        return {
            domain.UUIDString(): set(
                etree.fromstring(domain.XMLDesc(0)).xpath("devices/hostdev[@type='mdev']//@uuid")
            )
            for domain in self._domains("host1")
        }

    def made(self) -> dict[str, str]:
        """Return by uuid the card of each mediated device that there is."""
        devices = mdev.devices(self.hosts["host1"].roots)
        return {uuid: str(item.parent) for uuid, item in devices.items()}

    def claims(self) -> tuple[dict[str, set[str]], dict[str, str]]:
        """Return by device the instances that have it, and the card of each."""
        users: dict[str, set[str]] = {}
        cards = self.made()
        for uuid, devices in self.by_domain().items():
            for device in devices:
                users.setdefault(device, set()).add(uuid)
        slots: dict[str, str] = {}
        for instance in self._instances():
            for text in self._written_down(instance):
                self.assertEqual(instance.uuid, slots.setdefault(text, instance.uuid), text)
                slot = Slot.parse(text)
                device = device_uuid(instance.uuid, slot)
                users.setdefault(device, set()).add(instance.uuid)
                self.assertEqual(str(slot.parent), cards.setdefault(device, str(slot.parent)))
        return users, cards

    def free(self) -> dict[str, int]:
        """Return by provider of stock Nova or nova-gpu how many of its type Placement gives."""
        amounts = {}
        for provider in self._get_all_providers():
            name = provider["name"]
            has_any = "VGPU" in self._get_provider_inventory(provider["uuid"])
            if has_any and (providers.function_of(name) or name.endswith(self.TYPE)):
                total, reserved, used = self.counts(provider["uuid"])
                amounts[name] = total - reserved - used
        return amounts

    def check(self) -> None:
        domains, instances = self.by_domain(), self._instances()
        users, cards = self.claims()
        for device, uuids in users.items():
            self.assertEqual(1, len(uuids), f"{device} is of two: {uuids}")
        taken = [cards[device] for device in users]
        made = self.made()
        for card in _CARDS:
            self.assertLessEqual(list(made.values()).count(card), _EACH, f"made at {card}")
        for name, count in self.free().items():
            parent = providers.function_of(name)
            if parent is None:
                room = _EACH * len(_CARDS) - len(taken)
                self.assertLessEqual(count, room, f"{name} is offered: {users}")
            elif self.is_stock:
                room = _EACH - taken.count(str(parent))
                self.assertLessEqual(count, room, f"{name} is offered: {users}")
        for instance in instances:
            if instance.vm_state == "active":
                self.assertEqual(set(), domains.get(instance.uuid, set()) - made.keys())
        self._check_own(domains, instances)

    def check_end(self) -> None:
        domains, made = self.by_domain(), self.made()
        uuids = set[str]().union(*domains.values())
        defined = self.devices["host1"].defined
        for server in self._servers():
            if server["status"] in ("ACTIVE", "SHUTOFF") and server["id"] not in self.failed:
                self._check_records(server, domains.get(server["id"], set()))
        if self.is_stock:
            self.assertEqual({}, self.inventories())
            self.assertLessEqual(uuids, defined)
            return
        self.assertEqual(set(), uuids & defined)
        # Until a resize is confirmed stock Nova's vGPUs are counted for its migration.
        if not any(server["status"] == "VERIFY_RESIZE" for server in self._servers()):
            # Nova counts on for a resized instance that is deleted while nova-compute is down; a
            # way back that was killed may have made one that is empty.
            for name in self.providers():
                self.assertIn(self.free().get(name, 0), (0, _EACH), name)
            counts = _EACH * len(_CARDS), len(made.keys() - uuids), len(uuids)
            self.assertEqual(counts, self.inventories()[65])
        self.assertEqual((), self.judge().differences)

    def _check_records(self, server: Server, devices: set[str]) -> None:
        wanted = server["flavor"]["extra_specs"]
        if (spec := self.request_spec(server)) is not None:
            self.assertEqual(wanted, spec.flavor.extra_specs)
        own = int(wanted.get(names.VGPUS, "= 0").removeprefix("= "))
        count = own + int(wanted.get(_VGPU, 0))  # nova-gpu knows Placement's words, too
        self.assertFalse(self.is_stock and own, wanted)
        self.assertEqual(count, len(devices), f"vGPUs of {server['id']}")
        slots = [Slot.parse(text) for text in self.recorded(server)]
        recorded = {device_uuid(server["id"], slot) for slot in slots}
        self.assertEqual(set() if self.is_stock else devices, recorded)
        counted = self.counted_by_stock(devices) if self.is_stock else {"host1": count}
        self.assertEqual(counted, self.allocated(server, "VGPU"))
