# SPDX-License-Identifier: Apache-2.0
"""One end of the live migration of a guest with vGPUs, over a generated host."""

from __future__ import annotations

from typing import Any

from nova import objects
from nova.objects import migrate_data

from tests.fixtures.compute import resources
from tests.unit.virt.lifecycle import test_vgpus

CARD = test_vgpus.CARD
SIZE = "nvidia-63"
# What one says of a vGPU to the other
WORDS = f"{SIZE} of 10de:1bb3, a mediated device; driver 570.172.08"
# Of the same type at the other host, which has its card elsewhere.
THERE = "0000:88:00.0"


def slots(address: str, *numbers: int) -> list[str]:
    return [f"{address}/{SIZE}/{number}" for number in numbers]


class MovingTestCase(test_vgpus.VGPUsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.provider = self.compute.provider("1bb3", SIZE)
        self.moves = self.compute.gpus.moves
        self.plain = self.compute.instance({})

    def has(self, *identifiers: str) -> objects.Instance:
        """An instance with these of this host"""
        had = [(self.provider, each) for each in identifiers]
        return self.compute.instance({"vgpus": str(len(had))}, *had)

    def moving(self, old: list[str], new: list[str], here: str) -> objects.Instance:
        """An instance on its way: one side is this host's, the other that of another host.

        :param here: ``old`` or ``new``
        """
        providers = {"old": "3f0b9c8d-1111-4222-8333-444455556666"}
        providers["new"], providers[here] = providers["old"], self.provider
        sides = {
            side: resources(*((providers[side], each) for each in named))
            for side, named in (("old", old), ("new", new))
        }
        instance = self.compute.instance({"vgpus": str(len(old))})
        instance.resources = sides["old"]
        instance.numa_topology = instance.pci_devices = instance.pci_requests = None
        instance.migration_context = objects.MigrationContext(
            old_resources=sides["old"], new_resources=sides["new"]
        )
        return instance

    def data(self, **fields: Any) -> Any:
        """What Nova's two hosts hand each other"""
        return migrate_data.LibvirtLiveMigrateData(**fields)
