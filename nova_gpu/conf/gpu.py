# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from nova_gpu.conf import scheduling, vgpu
from nova_gpu.core import extensions, health_verdict, vendors

GROUP = cfg.OptGroup(
    "gpu",
    title="GPU options",
    help="Which GPUs a compute host offers, and how. All options have defaults.",
)

OPTS: Sequence[cfg.Opt] = (
    cfg.ListOpt(
        "vendors",
        default=list(vendors.VENDORS),
        help=f"""
PCI vendor ids (four hexadecimal digits) of the cards to offer. The default has all vendors that
nova-gpu knows: {", ".join(vendor.name for vendor in vendors.VENDORS.values())}. A card is a PCI
display controller or, from AMD, a processing accelerator. Accelerators of other vendors, such as
the NPU of an Intel processor, are offered only if ``[gpu]product_ids`` or ``[gpu]addresses`` names
them.

Related options:

* ``[gpu]addresses`` and ``[gpu]product_ids`` restrict further.
""",
    ),
    cfg.ListOpt(
        "addresses",
        default=[],
        help="""
PCI addresses (``0000:88:00.0``) of the only cards to offer. Empty: offer every card. A card named
here is offered even if the host booted on it as its display: LXC guests get it as it is, KVM guests
once ``nova-gpu host prepare`` has taken it from the host.

Related options:

* ``[gpu]product_ids``: a card is offered if either list names it.
* ``[gpu]vendors`` does not restrict the cards named here.
""",
    ),
    cfg.ListOpt(
        "product_ids",
        default=[],
        help="""
Products (``vendor_id:product_id``, such as ``10de:2335``) of the only cards to offer. Empty: offer
every product. A card of a product named here is offered even if the host booted on it as its
display, as with ``[gpu]addresses``.

Related options:

* ``[gpu]addresses``: a card is offered if either list names it.
* ``[gpu]vendors`` does not restrict the products named here.
""",
    ),
    cfg.StrOpt(
        "on_stop",
        default="keep",
        choices=[
            ("keep", "a stopped instance keeps its GPUs"),
            ("release", "a stopped instance releases its GPUs, and claims others at its start"),
        ],
        help="""
What a stopped instance does with its GPUs if its flavor does not set ``gpu:on_stop``; an image can
only keep them. An instance that released its GPUs starts only if the host has free GPUs that fit
its flavor. nova-compute reads the option when an instance is stopped, and at its own start for
instances that are stopped already.
""",
    ),
    cfg.MultiStrOpt(
        "product",
        default=[],
        help="""
Facts about a product that neither NVML nor the built-in table knows, or that override them. Set it
once per product, as ``vendor_id:product_id key=value ...`` with the keys ``architecture`` (a word),
``memory_mib`` (MiB, an integer) and ``name`` (the rest of the line, so it comes last), for example
``10de:2335 architecture=hopper memory_mib=143771 name=H200 SXM``. Boards of several names may have
one product id, such as NVIDIA's A2 and A16. A line with the ids of the subsystem is about one of
them: ``10de:25b6:10de:157e name=A2`` (``subsystem`` in ``nova-gpu show``). Cards of one product are
in one resource provider; if a host has boards of several names, its model is all of them. With
``provider=own`` in its line (``10de:25b6:10de:157e provider=own name=A2``) a kind of board gets one
of its own on hosts that give cards whole, with its own model. Instances keep the provider that they
have, and the cards of ended ones change to the other.
""",
    ),
    cfg.MultiStrOpt(
        "link_groups",
        deprecated_name="linked",
        default=[],
        help="""
PCI addresses of cards that direct links (NVLink, XGMI) join: ``0000:04:00.0 0000:05:00.0``. Set it
once per set of cards. Only needed on KVM hosts, where no vendor driver can report the links. While
a guest has a card of a set, or a virtual function without a type, no other guest gets one of that
set. Cards of AMD whose functions share memory (gim's ``fb_sharing_mode``) must be listed.

Related options:

* ``[gpu]nvml``
* ``[gpu]split_link_groups``
""",
    ),
    cfg.BoolOpt(
        "split_link_groups",
        default=False,
        help="""
Let several KVM guests at a time have cards that direct links join. Nothing blocks the links: a
guest with one of the cards may reach the memory of the others. Set this only if all users trust
each other, or if the links are disabled in another way.

Related options:

* ``[gpu]link_groups``
""",
    ),
    cfg.BoolOpt(
        "allow_ports_without_acs",
        default=False,
        help="""
Let several KVM guests at a time have cards that PCI Express ports do not separate: cards below one
switch, or below the root ports of one slot, where Access Control Services (ACS) of a port are
missing, off or unreadable. The requests of such cards to each other do not pass the IOMMU: a guest
with one of them can read and write the memory of the others, and what their guests do with it. Set
this only if all users trust each other. False: while a guest has one of these cards, no other guest
gets the others, nor virtual functions of them. Guests that have them already keep them and start
with them again. ``nova-gpu host check`` names the cards and ports.
""",
    ),
    cfg.BoolOpt(
        "nvml",
        default=True,
        help="""
Query NVIDIA's management library (NVML) about the cards of NVIDIA's driver. nova-compute runs a
short-lived process for each query, and only on hosts of containers: on a KVM host NVML would have
cards open that are to be bound to vfio-pci. If the nvidia-ml-py package is missing or NVML fails,
the facts that only NVML has (memory, NVLinks, the card's UUID) are unknown, and cards with MIG
instances are not offered because the sizes of these are unknown.

Related options:

* ``[gpu]nvml_timeout``
""",
    ),
    cfg.IntOpt(
        "nvml_timeout",
        default=30,
        min=1,
        max=600,
        help="""
Seconds after which the process that queries NVML is killed; its answer then counts as missing.

Related options:

* ``[gpu]nvml``
""",
    ),
    cfg.IntOpt(
        "health_interval",
        default=60,
        min=1,
        max=86400,
        help="""
Minimum seconds between two queries of NVML and the kernel's log about the health of cards. The
periodic task that updates the host's resources makes them, so its period is the lower limit. The
state in sysfs is read in every period.

Related options:

* ``[DEFAULT]update_resources_interval`` is the period of that task.
* ``[gpu]nvml`` and ``[gpu]nvml_timeout``
* ``[gpu]fatal_xids``
""",
    ),
    cfg.ListOpt(
        "fatal_xids",
        item_type=types.Integer(min=1),
        default=list(health_verdict.FATAL_XIDS),
        sample_default=", ".join(map(str, health_verdict.FATAL_XIDS)),
        help="""
Errors of NVIDIA's driver (Xids in the kernel's log) that put a card into quarantine. New instances
do not get the card until ``nova-gpu quarantine release`` or, except after Xid 79, the next boot of
the host. The default lists the Xids for which NVIDIA's Xid catalog asks for a reset of the card or
a boot of the host and that a tenant's program alone cannot cause. Empty: the kernel's log is not
read.

Related options:

* ``[gpu]health_interval``
""",
    ),
    cfg.BoolOpt(
        "allow_privileged_containers",
        default=False,
        help="""
Offer GPUs to LXC guests that have no user id maps. Without the maps, root in the guest is root for
the host's kernel: it can take every other tenant's GPU, and the host. Set this only if you trust
every user with the host.

Related options:

* ``[libvirt]uid_maps`` and ``[libvirt]gid_maps`` make containers unprivileged; set those instead.
""",
    ),
    cfg.BoolOpt(
        "count_models",
        default=False,
        help="""
Count whole cards in Placement by their model too, so that unified limits can limit one model:
``class:CUSTOM_GPU_MODEL_H200`` next to ``class:PGPU``. nova-compute offers the class, and counts
the cards of the host's instances by it. nova-scheduler requests it for flavors with one
``gpu:model``, whose instances then get only hosts that offer it: set it on all hosts with GPUs
first, then on controllers. A host that once offered the class offers it even if this is unset
again, because Placement refuses to remove what is in use.
""",
    ),
    cfg.BoolOpt(
        "charge_faulty",
        default=True,
        help="""
Count the time of a card for the instance that has it, in ``gpu.exists`` and
``nova_gpu_usage_seconds_total``, also while the card is broken, as PCI, NVML or a test shows it, or
in quarantine. False: that time is not counted, from the last period of nova-compute before it sees
the fault to the first one without it. Set it alike on all hosts.

Related options:

* ``[DEFAULT]instance_usage_audit``, without which there is neither
""",
    ),
    cfg.IntOpt(
        "claim_grace_period",
        deprecated_name="handed_out_timeout",
        default=60,
        min=1,
        max=3600,
        help="""
Seconds for which a claimed GPU is not given to another instance, even if Nova's resource tracker no
longer knows the claim and no guest has the GPU yet. The tracker forgets a claim if its periodic
task runs before the claim is in the database. If the guest never starts, and the tracker had
forgotten the claim, the GPU becomes free in the next period in which no instance of the host has a
task under way, at the latest after this time. If the tracker released the claim, the GPU becomes
free at once.

Related options:

* ``[DEFAULT]update_resources_interval``: should be shorter.
""",
    ),
    cfg.IntOpt(
        "guest_mmio_gib",
        min=1,
        max=1 << 20,
        help="""
GiB of address space above 4 GiB into which a KVM guest can map the memory of its GPUs. Empty, the
default: nova-gpu gives each guest the room that its GPUs need, within the address bits of the
host's processor and IOMMU. With a number nova-gpu configures nothing in guests, does not offer
cards that map more, and refuses instances whose GPUs map more.

Related options:

* ``[libvirt]cpu_mode``: with ``none`` a guest has 40 address bits on any host.
""",
    ),
    cfg.IntOpt(
        "bind_timeout",
        default=60,
        min=1,
        max=600,
        help="""
Seconds allowed for binding all functions of a card to vfio-pci or back to the host's drivers, and
for creating or removing one vGPU. If a driver does not release its card in time, nova-compute logs
the card and the step, and the instance is scheduled to another host.
""",
    ),
    *scheduling.OPTS,
    *vgpu.OPTS,
    cfg.MultiStrOpt(
        "clean_command",
        default=[],
        help="""
A program of yours that cleans a card after its guest has ended and before another guest gets it.
Set the option once for the absolute path of the program and once for each argument, in this order.
There is no shell. It runs as root in ``/``, once per card and for several cards at a time. Its
environment is ``PATH``, ``LC_ALL``, ``NOVA_GPU_ADDRESS`` (``0000:88:00.0``), ``NOVA_GPU_PRODUCT``
(``10de:2335``), ``NOVA_GPU_MODE`` (``pci``: vfio-pci has the card; ``lxc``: its vendor's driver has
it; ``vgpu``: clean one MIG instance of it, as guests use the others) and, for a MIG instance,
``NOVA_GPU_MIG_INSTANCE`` (``9/0``: GPU instance and compute instance). Its output is logged. If its
exit status is not 0, the card goes into quarantine; a MIG instance is withheld from guests and
cleaned again in every period. Only root may own and be able to write the program and all folders
above it.

Related options:

* ``[gpu]clean_timeout``
""",
    ),
    cfg.IntOpt(
        "clean_timeout",
        default=60,
        min=1,
        max=3600,
        help="""
Seconds allowed for each step of cleaning a card: its reset, the end of processes that a container
left, and ``[gpu]clean_command``. A step that takes longer is stopped, and the card goes into
quarantine; if it is the search for processes, the card is reserved, and each period tries again.
The deletion of an instance waits for these steps.

Related options:

* ``[gpu]clean_command``
""",
    ),
    cfg.BoolOpt(
        "require_reset",
        default=True,
        help="""
Put a card into quarantine if it cannot be reset after a KVM guest. Set this to false only for cards
that cannot be reset at all, and only if the next guest may read what the last one left.
""",
    ),
    cfg.BoolOpt(
        "share_gpu_instances",
        default=False,
        help="""
Give guests one MIG compute instance each of a GPU instance that has several (``1c.3g.71gb``). They
share all of its memory, which NVIDIA's driver does not divide between them: a guest may exhaust it,
and only the driver keeps the contents apart. Set this only if such guests trust each other. False:
new guests only get a compute instance that is the only one of its GPU instance.
""",
    ),
    cfg.BoolOpt(
        "stop_guests_that_reach_others",
        default=False,
        help="""
Stop an LXC guest in the next period if its device nodes lead to a card or MIG instance that is not
its own. This happens if the driver was reloaded and numbered its cards differently, or if a card
was divided again or made whole. The whole guest is stopped at once; Nova shows the instance as
SHUTOFF, and ``openstack server start`` gives it its own cards again. False: nova-compute reports
the guest, and new guests do not get what it reaches until it has ended.

Related options:

* ``[DEFAULT]update_resources_interval`` is the period.
""",
    ),
    cfg.StrOpt(
        "sysfs_root",
        default="/sys",
        help="Root of sysfs. Set another root than /sys only for tests and labs without a GPU.",
    ),
    cfg.StrOpt(
        "dev_root",
        default="/dev",
        help="""
Root of the device nodes that nova-gpu inspects. libvirt always gets paths below /dev. Set another
root than /dev only for tests.
""",
    ),
    cfg.StrOpt(
        "proc_root",
        default="/proc",
        help="""
Root of the NVIDIA driver's files (``driver/nvidia``) and of ``devices``. Set another root than
/proc only for tests and labs without a GPU.
""",
    ),
    cfg.ListOpt(
        "cdi_spec_dirs",
        default=["/etc/cdi", "/var/run/cdi"],
        help="""
Folders of Container Device Interface specifications; later folders take precedence. They name what
an LXC guest gets in addition to the device nodes: libraries, other files, environment. A file that
is not owned by root or that other users can write is refused.

Related options:

* ``[gpu]nvidia_modeset``
""",
    ),
    cfg.BoolOpt(
        "nvidia_modeset",
        default=False,
        help="""
Give LXC guests with NVIDIA cards ``/dev/nvidia-modeset`` too, if a CDI specification lists it, as
the files of ``nvidia-ctk`` do. Displays need it; CUDA does not. Through it a guest can let the
kernel open any NVIDIA card of the host, other guests' cards included, whatever device nodes and
cgroups allow. Set this only if all guests of the host belong to one tenant whom you trust.

Related options:

* ``[gpu]cdi_spec_dirs``
""",
    ),
    *(option for options in extensions.load("nova_gpu.options") for option in options),
)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the [gpu] options in *conf*. Calling it again changes nothing."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """Return the options for oslo-config-generator (entry point ``oslo.config.opts``)."""
    return [(GROUP, OPTS)]
