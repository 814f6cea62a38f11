# SPDX-License-Identifier: Apache-2.0
"""One end of the live migration of a guest with vGPUs, over a generated host."""

from __future__ import annotations

from typing import Any

import fixtures
from nova import objects
from nova.objects import migrate_data
from oslotest import base

from tests.fixtures import dividing_kernel, hosts, vgpu
from tests.fixtures.compute import Compute, resources

CARD = "0000:5e:00.0"
SIZE = "nvidia-63"
# What one says of a vGPU to the other
WORDS = f"{SIZE} of 10de:1bb3, a mediated device; driver 570.172.08"
# Of the same type at the other host, which has its card elsewhere.
THERE = "0000:88:00.0"


def slots(address: str, *numbers: int) -> list[str]:
    return [f"{address}/{SIZE}/{number}" for number in numbers]


class MovingTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        self.host.add_gpu(CARD, "10de", "1bb3")
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        self.kernel = self.useFixture(dividing_kernel.DividingKernel(self.host))
        self.compute = self.useFixture(Compute(self.host))
        self.provider = self.compute.provider("1bb3", SIZE)
        self.moves = self.compute.gpus.moves
        self.ledger = self.compute.gpus.ledger
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
            old_resources=sides["old"],
            new_resources=sides["new"],
        )
        return instance

    def data(self, **fields: Any) -> Any:
        """What Nova's two hosts hand each other"""
        return migrate_data.LibvirtLiveMigrateData(**fields)
