# SPDX-License-Identifier: Apache-2.0
"""Asks each who knows one of the four truths."""

from __future__ import annotations

import collections
from typing import Any

import libvirt
from lxml import etree
from nova import context as nova_context
from nova import objects

from nova_gpu.core.flavor import request
from tests.crash import cloud, truths
from tests.lxc import base, place

_CARD_BY_NODE = {place.node(gpu).path: address for gpu, address in enumerate(place.GPUS)}
# A migration that has come to one of these keeps nothing.
_ENDED = ("confirmed", "reverted", "done", "completed", "failed")


class ReadingTestCase(cloud.Cloud):
    def truths(self) -> truths.HostState:
        instances = self._instances()
        provider = self.gpu_provider(base.PROVIDER)
        inventory = self._get_provider_inventory(provider)["PGPU"]
        return truths.HostState(
            cards=frozenset(
                path.name
                for path in (self._host.roots.sysfs / "bus/pci/devices").iterdir()
                if (path / "class").read_text().startswith("0x0302")
            ),
            guests=_guests(),
            instances=instances,
            allocated=self._allocated(provider),
            total=inventory["total"],
            reserved=inventory["reserved"],
            free=frozenset(self.ask("free")),
        )

    def _instances(self) -> dict[str, truths.Instance]:
        context = nova_context.get_admin_context()
        found = objects.InstanceList.get_by_filters(
            context,
            {"deleted": False},
            expected_attrs=["resources", "migration_context", "flavor", "system_metadata"],
        )
        migrations = {each.id: each for each in self._migrations()}
        # Also one without a host, which died with its service before that claimed it: Nova puts it
        # into ERROR, and what Placement counts for it goes with its deletion.
        return {each.uuid: _instance(each, migrations) for each in found}

    def _migrations(self) -> list[Any]:
        context = nova_context.get_admin_context(read_deleted="yes")
        return list(objects.MigrationList.get_by_filters(context, {}))

    def _allocated(self, provider: str) -> collections.Counter[str]:
        allocations = self._get_allocations_by_provider_uuid(provider)
        of_instance = {each.uuid: each.instance_uuid for each in self._migrations()}
        counted: collections.Counter[str] = collections.Counter()
        for consumer, allocation in allocations.items():
            counted[of_instance.get(consumer, consumer)] += allocation["resources"]["PGPU"]
        return counted


def _instance(instance: Any, migrations: dict[int, Any]) -> truths.Instance:
    kept = truths.Cards()
    context = instance.migration_context
    if context and migrations[context.migration_id].status not in _ENDED:
        kept = _cards(context.old_resources) | _cards(context.new_resources)
    asked = request.of(instance.flavor.extra_specs).whole
    cards = _cards(instance.resources)
    return truths.Instance(instance.vm_state, instance.task_state, asked.count, cards, kept - cards)


def _cards(resources: Any) -> truths.Cards:
    return frozenset(each.identifier for each in resources or () if each.resource_class == "PGPU")


def _guests() -> dict[str, truths.Guest]:
    connection = libvirt.open("lxc:///")
    try:
        return {
            domain.UUIDString(): truths.Guest(bool(domain.isActive()), _named(domain.XMLDesc()))
            for domain in connection.listAllDomains()
        }
    finally:
        connection.close()


def _named(xml: str) -> truths.Cards:
    """By the nodes that its device cgroup lets through: what the guest can really use."""
    nodes = etree.fromstring(xml).xpath("devices/hostdev/source/char/text()")
    return frozenset(_CARD_BY_NODE[node] for node in nodes if node in _CARD_BY_NODE)
