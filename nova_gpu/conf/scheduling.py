# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about the choice of an instance's host."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from nova_gpu.core.flavor.placement_policy import Distribution
from nova_gpu.core.topology.affinity import Policy

LAST, NEVER = "last", "never"

OPTS: Sequence[cfg.Opt] = (
    cfg.StrOpt(
        "distribution",
        default=Distribution.PACK,
        choices=[
            (Distribution.PACK, "the host with the fewest free GPUs left: large sets stay free"),
            (Distribution.SPREAD, "the host with the most free GPUs left: few share a host"),
        ],
        help="""
Which host an instance with GPUs gets if several are equally good in topology. A flavor overrides it
with ``gpu:distribution``. Read by nova-scheduler, where ``GPUWeigher`` is enabled.

Related options:

* ``[gpu]gpu_weight_multiplier``
* ``[filter_scheduler]weight_classes``
""",
    ),
    cfg.StrOpt(
        "pci_numa_affinity_policy",
        choices=[
            (Policy.REQUIRED, "on the NUMA nodes of the instance's cells"),
            (Policy.SOCKET, "on the sockets of these nodes"),
            (Policy.LEGACY, "on these nodes, or on a node that is unknown"),
            (Policy.PREFERRED, "on these nodes if possible"),
        ],
        help="""
Where the GPUs of an instance with NUMA cells may be (``hw:numa_nodes``, ``hw:cpu_policy``,
``hw:mem_page_size``), if neither its flavor nor its image says so with Nova's
``hw:pci_numa_affinity_policy`` or ``hw_pci_numa_affinity_policy``. By default it is as Nova has it
for other PCI devices, ``legacy``; and ``preferred`` for mediated devices, for which Nova has no
policy. Set it to the same value for nova-compute and nova-scheduler. Instances keep the GPUs that
they have.
""",
    ),
    cfg.BoolOpt(
        "move_cells_without_gpus",
        default=False,
        help="""
Move the cells of a new instance without GPUs to NUMA nodes of its host whose GPUs are in use, if
its processors and memory fit there, so that nodes with free GPUs keep theirs. Nova chooses nodes
without looking at GPUs. Instances with PCI devices by aliases or with ports keep their nodes, and
so do running ones. Read by nova-compute.

Related options:

* ``[gpu]cpu_only_instances`` keeps such instances off hosts with GPUs altogether.
""",
    ),
    cfg.FloatOpt(
        "gpu_weight_multiplier",
        default=1000.0,
        help="""
Multiplier of the weights that ``GPUWeigher`` gives hosts for instances with GPUs. The default is
above the defaults of Nova's other weighers, which would spread instances by memory and CPU. 0 turns
these weights off. An aggregate's metadata of the same name overrides it for its hosts. Read by
nova-scheduler.

Related options:

* ``[filter_scheduler]ram_weight_multiplier`` and similar ones
""",
    ),
    cfg.StrOpt(
        "cpu_only_instances",
        default=LAST,
        choices=[
            (LAST, "hosts without GPUs come first, by gpu_host_weight_multiplier"),
            (NEVER, "GPUFilter refuses such hosts"),
        ],
        help="""
When an instance without GPUs may get a host that has some. Running instances stay. Read by
nova-scheduler.

Related options:

* ``[gpu]gpu_host_weight_multiplier``
* ``[gpu]reserved_vcpus_per_free_gpu`` and ``[gpu]reserved_memory_mib_per_free_gpu``
""",
    ),
    cfg.FloatOpt(
        "gpu_host_weight_multiplier",
        default=1000.0,
        help="""
Multiplier of the weights that ``GPUWeigher`` gives hosts for instances without GPUs: the larger it
is, the more these avoid hosts with GPUs. 0: not at all. An aggregate's metadata of the same name
overrides it for its hosts. Read by nova-scheduler, where ``GPUWeigher`` is enabled.

Related options:

* ``[gpu]cpu_only_instances``
""",
    ),
    cfg.IntOpt(
        "reserved_vcpus_per_free_gpu",
        default=0,
        min=0,
        max=4096,
        help="""
vCPUs of this host that instances without devices must leave for each free GPU, so that no GPU stays
unused for lack of vCPUs. The allocation ratio applies; the vCPUs that the host reserves for itself
do not count. Read by nova-compute, which reports it to the scheduler: ``GPUFilter`` refuses the
host to such instances, and the host checks once more before their guests start.

Related options:

* ``[gpu]reserved_memory_mib_per_free_gpu``
* ``[gpu]cpu_only_instances`` keeps such instances away altogether.
* ``[DEFAULT]cpu_allocation_ratio`` and ``[DEFAULT]reserved_host_cpus``
""",
    ),
    cfg.IntOpt(
        "reserved_memory_mib_per_free_gpu",
        default=0,
        min=0,
        max=1 << 24,
        help="""
MiB of this host's memory that instances without devices must leave for each free GPU, as
``[gpu]reserved_vcpus_per_free_gpu`` does for vCPUs.

Related options:

* ``[gpu]reserved_vcpus_per_free_gpu``
* ``[DEFAULT]ram_allocation_ratio`` and ``[DEFAULT]reserved_host_memory_mb``
""",
    ),
)
