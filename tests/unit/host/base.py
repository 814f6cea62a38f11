# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.core import model
from nova_gpu.host.pci import discovery
from tests.fixtures import hosts
from tests.fixtures.nodes import Nodes


class HostTestCase(base.BaseTestCase):
    """A generated host without devices"""

    NODES = Nodes.NONE
    IOMMU = True

    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(self.root, nodes=self.NODES, iommu=self.IOMMU)

    def gpu_at(self, address: str) -> model.GPU:
        found = discovery.card_at(model.PciAddress.parse(address), self.host.roots)
        assert found is not None
        return found
