# SPDX-License-Identifier: Apache-2.0
"""The nodes of a guest's NUMA cells, chosen anew before it starts if its GPUs are on others.

A claim of Nova puts the cells on the nodes with the most free memory and processors, and knows no
GPUs that are in Placement (``hardware.numa_fit_instance_to_host``; doc/source/contributor/
upstream.rst). The functions here fit them again, as Nova does, to nodes that have GPUs.
"""

from __future__ import annotations

from collections.abc import Collection

from nova import objects
from nova.virt import hardware


def host(node: objects.ComputeNode) -> objects.NUMATopology | None:
    """Return the NUMA topology that Nova reports of a host with its usage, ``None`` without one."""
    text = node.numa_topology if "numa_topology" in node else None
    return objects.NUMATopology.obj_from_db_obj(text) if text else None


def are_tied(topology: objects.NUMATopology, instance: objects.Instance) -> bool:
    """Return whether the cells must stay on the nodes that Nova has chosen.

    A PCI device, or a physical network of the host, may have decided that choice.
    """
    requests = instance.pci_requests
    networks = (cell.network_metadata for cell in topology.cells if "network_metadata" in cell)
    return bool(requests and requests.requests) or any(
        network.physnets or network.tunneled for network in networks
    )


def able(
    node: objects.ComputeNode, topology: objects.NUMATopology, instance: objects.Instance
) -> list[int]:
    """Return the nodes on which one of the instance's cells fits; see :func:`fit`."""
    wanted = hardware.numa_get_constraints(instance.flavor, instance.image_meta)
    nodes = []
    for host_cell in topology.cells:
        for cell in wanted.cells:
            one = wanted.obj_clone()
            one.cells = [cell]
            if _fit(node, topology, one, {host_cell.id}) is not None:
                nodes.append(host_cell.id)
                break
    return nodes


def fit(
    node: objects.ComputeNode,
    topology: objects.NUMATopology,
    instance: objects.Instance,
    nodes: Collection[int],
) -> objects.InstanceNUMATopology | None:
    """Return the instance's cells on *nodes*, one on each, ``None`` if they do not fit there.

    :param topology: the host's, without the usage of the instance
    """
    wanted = hardware.numa_get_constraints(instance.flavor, instance.image_meta)
    return _fit(node, topology, wanted, nodes)


def _fit(
    node: objects.ComputeNode,
    topology: objects.NUMATopology,
    wanted: objects.InstanceNUMATopology,
    nodes: Collection[int],
) -> objects.InstanceNUMATopology | None:
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=node.cpu_allocation_ratio,
        ram_allocation_ratio=node.ram_allocation_ratio,
    )
    return hardware.numa_fit_instance_to_host(
        objects.NUMATopology(cells=[cell for cell in topology.cells if cell.id in nodes]),
        wanted.obj_clone(),  # Nova writes into it
        provider_mapping=None,
        limits=limits,
    )
