# SPDX-License-Identifier: Apache-2.0
"""Hosts of two NUMA nodes, whose processors are pinned, with huge pages and a network card."""

from __future__ import annotations

import json
from typing import Any

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional.base import Server

_NIC = {"vendor_id": "8086", "product_id": "1533"}
_NODES = 2
# The flavor's for a guest whose processors and memory are its own
WORDS = {"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"}


def node_of(device: str) -> int:
    """The NUMA node of a card or a part of one, in the generated machines with two"""
    return int(int(device[5:7], 16) >= 0x80)


class Pinned:
    """``DEDICATED`` and ``SHARED``: the processors, of which each node has half, for guests with
    pinned ones and for others. ``NIC_NODE``: the node of the network card, which instances get by
    an alias with a policy of its own; Nova prefers the others for those without."""

    ADDITIONAL_FILTERS = ("GPUFilter", "NUMATopologyFilter", "PciPassthroughFilter")
    CORES = 2
    DEDICATED: str = "0-7"
    SHARED: str | None = None
    NIC_NODE: int | None = None

    def _setup_hypervisor(self: Any) -> None:
        super()._setup_hypervisor()  # type: ignore[misc]
        self.flags(cpu_dedicated_set=self.DEDICATED, cpu_shared_set=self.SHARED, group="compute")
        alias = {**_NIC, "name": "nic", "numa_policy": "required"}
        self.flags(alias=[json.dumps(alias)], device_spec=[json.dumps(_NIC)], group="pci")

    def start_host(self: Any, name: str = "host1", *args: Any, **kwargs: Any) -> None:
        pages = fakelibvirt.create_mempages([(4, 1 << 18), (2048, 1024)])
        size = {"cpu_nodes": _NODES, "cpu_cores": self.CORES, "cpu_threads": 2}
        kwargs["host_info"] = fakelibvirt.HostInfo(**size, mempages=[pages] * _NODES)
        if self.NIC_NODE is not None:
            kwargs["pci_info"] = fakelibvirt.HostPCIDevicesInfo(
                num_pci=1, num_pfs=0, num_vfs=0, numa_node=self.NIC_NODE
            )
        super().start_host(name, *args, **kwargs)  # type: ignore[misc]

    def pinned(self: Any, gpus: int, /, cells: int = 1, **words: str) -> str:
        """A flavor with a processor on each of so many nodes"""
        specs = {**WORDS, "hw:numa_nodes": str(cells), **words}
        if gpus:
            specs["gpus"] = f"= {gpus}"
        small = {"memory_mb": 128 * cells, "vcpu": cells, "disk": 1, "ephemeral": 0}
        return str(self._create_flavor(**small, extra_spec=specs))

    def cells(self: Any, server: Server) -> list[int]:
        return sorted(cell.id for cell in self.instance(server).numa_topology.cells)
