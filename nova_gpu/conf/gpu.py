# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from nova_gpu.conf import scheduling, vgpu
from nova_gpu.core import health

GROUP = cfg.OptGroup(
    "gpu",
    title="GPU options",
    help="What a compute host offers of its GPUs, and where it reads about them. None is needed.",
)

OPTS: Sequence[cfg.Opt] = (
    cfg.ListOpt(
        "vendors",
        default=["10de", "1002", "8086"],
        help="""
Vendors whose cards are offered, by PCI vendor id (four hexadecimal digits). The default is NVIDIA,
AMD and Intel. Cards are what PCI calls a display, and of AMD also a processing accelerator; other
vendors' accelerators, as the NPU of an Intel processor, are offered only where
``[gpu]product_ids`` or ``[gpu]addresses`` name them.

Related options:

* ``[gpu]addresses`` and ``[gpu]product_ids`` restrict further.
""",
    ),
    cfg.ListOpt(
        "addresses",
        default=[],
        help="""
Offer these cards only, by PCI address (``0000:88:00.0``). Empty: every card found. A card named
here is offered even if it is the display the host booted on: to LXC guests as it is, to KVM guests
once ``nova-gpu host prepare`` took it from the host.

Related options:

* ``[gpu]product_ids``: a card passes if either list names it.
* ``[gpu]vendors``: a card named here need not be of these vendors.
""",
    ),
    cfg.ListOpt(
        "product_ids",
        default=[],
        help="""
Offer cards of these products only, as ``vendor_id:product_id`` (``10de:2335``). Empty: every
product found. A product named here is offered even if its card is the display the host booted on,
as with ``[gpu]addresses``.

Related options:

* ``[gpu]addresses``: a card passes if either list names it.
* ``[gpu]vendors``: a product named here need not be of these vendors.
""",
    ),
    cfg.StrOpt(
        "on_stop",
        default="keep",
        choices=[
            ("keep", "a stopped instance keeps its GPUs"),
            ("release", "it gives them back, and gets some again when it is started"),
        ],
        help="""
What becomes of the GPUs of an instance that is stopped, where its flavor does not say so
(``gpu:on_stop``); an image can keep them. One that has given them back is not started while the
host has none free that fit its flavor. It is read when an instance is stopped, and for those that
are stopped already when the service starts.
""",
    ),
    cfg.MultiStrOpt(
        "product",
        default=[],
        help="""
What a product is, where neither NVML nor the built-in table knows it or where they are to be
overruled. May be given several times, each as
``vendor_id:product_id key=value ...`` with the keys ``architecture`` (a word), ``memory_mib`` (MiB,
an integer) and ``name`` (the rest of the line, hence the last), for example
``10de:2335 architecture=hopper memory_mib=143771 name=H200 SXM``.
""",
    ),
    cfg.MultiStrOpt(
        "link_groups",
        deprecated_name="linked",
        default=[],
        help="""
Cards that direct links (NVLink, XGMI) join with each other, by PCI address:
``0000:04:00.0 0000:05:00.0``. May be given several times, once for each set. Only for cards of
which neither NVML nor the AMD driver says it: those of KVM hosts, which are with no driver that
would know. There the cards of one set are given to one guest at a time.

Related options:

* ``[gpu]nvml``
* ``[gpu]split_link_groups``
""",
    ),
    cfg.BoolOpt(
        "split_link_groups",
        default=False,
        help="""
Give cards that direct links join to several KVM guests at a time. Who has one of them may reach the
memory of the others over the links, which nothing blocks: only where all users trust each other, or
the links are switched off in another way.

Related options:

* ``[gpu]link_groups``
""",
    ),
    cfg.BoolOpt(
        "nvml",
        default=True,
        help="""
Ask NVIDIA's management library about cards the nvidia driver holds. It is asked in a process of its
own that lives for a moment, and only where guests get device nodes: on a KVM host it would hold
cards that are to change hands. Without the nvidia-ml-py package, or where the library fails, only
what it alone knows (memory, NVLinks, the card's UUID) is missing, and cards with MIG instances are
not offered, as nobody else knows what size those have.

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
Seconds after which the process that asks NVML is ended and its answer counted as missing.

Related options:

* ``[gpu]nvml``
""",
    ),
    cfg.StrOpt(
        "fabric_manager_address",
        default="127.0.0.1:6666",
        help="""
Where NVIDIA's Fabric Manager serves its interface (``FM_CMD_BIND_INTERFACE`` and
``FM_CMD_PORT_NUMBER`` of ``fabricmanager.cfg``): an IPv4 address with or without a port, or the
path of its Unix socket (``FM_CMD_UNIX_SOCKET_PATH``). It is asked on KVM hosts whose cards are
modules of a board with NVSwitches.

Related options:

* ``[gpu]nvml``: only NVML knows which module of its board a card is.
""",
    ),
    cfg.IntOpt(
        "health_interval",
        default=60,
        min=1,
        max=86400,
        help="""
Seconds that pass at least before NVML and the kernel's log are asked again how the cards are. They
are asked in the periodic task that updates the host's resources, hence not more often than that
runs. What sysfs tells is read every time.

Related options:

* ``[DEFAULT]update_resources_interval`` is the period of that task.
* ``[gpu]nvml`` and ``[gpu]nvml_timeout``
* ``[gpu]fatal_xids``
""",
    ),
    cfg.ListOpt(
        "fatal_xids",
        item_type=types.Integer(min=1),
        default=list(health.FATAL_XIDS),
        sample_default=", ".join(map(str, health.FATAL_XIDS)),
        help="""
Errors of NVIDIA's driver (Xids, in the kernel's log) after which a card is put into quarantine: no
other instance is given it before ``nova-gpu quarantine release``, or before the host has booted,
except after Xid 79. The default are those for which NVIDIA's Xid catalog wants the card reset or
the host restarted and that no program of a tenant brings about by itself. Empty: the kernel's log
is not read.

Related options:

* ``[gpu]health_interval``
""",
    ),
    cfg.BoolOpt(
        "allow_privileged_containers",
        default=False,
        help="""
Offer GPUs to LXC guests without user id maps. Without the maps root in the guest is root on the
host's kernel: it can give itself every other tenant's GPU, and the host. Say true only where every
user is trusted with the host.

Related options:

* ``[libvirt]uid_maps`` and ``[libvirt]gid_maps`` make containers unprivileged; set those instead.
""",
    ),
    cfg.BoolOpt(
        "require_counted_flavors",
        default=False,
        help="""
Refuse flavors that ask for GPUs with ``gpus`` alone, or for vGPUs with ``vgpus``. Quota is checked
in the API before any scheduler runs and counts only what stands in the flavor as ``resources:PGPU``
or ``resources:VGPU``. Read by nova-scheduler.
""",
    ),
    cfg.IntOpt(
        "claim_grace_period",
        deprecated_name="handed_out_timeout",
        default=60,
        min=1,
        max=3600,
        help="""
Seconds for which a GPU that was claimed for an instance stays out of the pool although neither the
resource tracker nor a guest names it yet. It covers the moment between a claim and its record in
the database, in which the periodic task forgets the claim. What was claimed for a guest that is
never started returns at once where the tracker released it; where the tracker had forgotten it, in
the next period in which no instance of the host has a task under way, or after this time.

Related options:

* ``[DEFAULT]update_resources_interval``: should be shorter.
""",
    ),
    cfg.IntOpt(
        "guest_mmio_gib",
        min=1,
        max=1 << 20,
        help="""
GiB of address space above 4 GiB into which a KVM guest can map the memory of its GPUs, in place of
what nova-gpu finds out. Empty, as it is by default, each guest gets the room that its GPUs need,
as far as the address bits of the host's processor and IOMMU go. With a figure nothing is set in
guests, a card that maps more is not offered, and an instance whose GPUs map more is refused.

Related options:

* ``[libvirt]cpu_mode``: with ``none`` a guest has 40 address bits, whatever the host has.
""",
    ),
    cfg.IntOpt(
        "bind_timeout",
        default=60,
        min=1,
        max=600,
        help="""
Seconds that binding all functions of a card to vfio-pci, or back to the host's drivers, may take,
and making or removing one vGPU. A driver that does not let go of its card by then is reported with
the card and the step, and the instance is scheduled to another host; nova-compute goes on.
""",
    ),
    *scheduling.OPTS,
    *vgpu.OPTS,
    cfg.MultiStrOpt(
        "clean_command",
        default=[],
        help="""
A program of yours that cleans a card after its guest is gone and before another one gets it, and
its arguments: the option is given once for each of them, the absolute path of the program first.
There is no shell. It is run as root, once for each card and for several at the same time, in ``/``,
with nothing in its environment but ``PATH``, ``LC_ALL``, ``NOVA_GPU_ADDRESS`` (``0000:88:00.0``),
``NOVA_GPU_MODE`` (``pci``: the card is with vfio-pci; ``lxc``: with its vendor's driver; ``vgpu``:
only a MIG instance of it is to be cleaned, and others use the rest), ``NOVA_GPU_MIG_INSTANCE`` of
such a one (``9/0``: GPU instance and compute instance) and ``NOVA_GPU_PRODUCT`` (``10de:2335``).
What it prints is logged. Where it exits with anything but 0 the card goes into quarantine; a MIG
instance is kept from guests, and cleaned again in every period. The program and all folders above
it must be root's and writable by root only.

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
Seconds that each step of cleaning a card may take: its reset, ending what processes a container
left, and ``[gpu]clean_command``. What is not done by then is ended, and the card goes into
quarantine. The deletion of an instance waits for it.

Related options:

* ``[gpu]clean_command``
""",
    ),
    cfg.BoolOpt(
        "require_reset",
        default=True,
        help="""
Put a card into quarantine when it was a KVM guest's and could not be reset afterwards. Say false
only for cards that nothing can reset, and where the next guest may find what the last one left.
""",
    ),
    cfg.BoolOpt(
        "share_gpu_instances",
        default=False,
        help="""
Give guests MIG compute instances of a GPU instance that has several (``1c.3g.71gb``), one each.
They share all of its memory, which NVIDIA's driver does not divide between them: a guest may
exhaust it, and nothing but the driver keeps its contents apart. Set it only where such guests trust
each other.
False: new guests get the only compute instance of a GPU instance alone.
""",
    ),
    cfg.BoolOpt(
        "stop_guests_that_reach_others",
        default=False,
        help="""
Stop an LXC guest, in the next period, whose device nodes have come to lead to a card or a MIG
instance that is not its own: the driver was loaded anew and has numbered its cards otherwise, or a
card was divided anew or made whole. The guest is ended at once as a whole, Nova has the instance as
SHUTOFF, and ``openstack server start`` gives it its own cards again. False: nova-compute reports
such a guest, and gives what it reaches to no new guest until it has ended.

Related options:

* ``[DEFAULT]update_resources_interval`` is the period.
""",
    ),
    cfg.StrOpt(
        "sysfs_root",
        default="/sys",
        help="Where sysfs is read. Another root than /sys is for tests and labs without a GPU.",
    ),
    cfg.StrOpt(
        "dev_root",
        default="/dev",
        help="""
Where device nodes are looked at. libvirt is given paths below /dev whatever stands here. Another
root than /dev is for tests.
""",
    ),
    cfg.StrOpt(
        "proc_root",
        default="/proc",
        help="""
Where the NVIDIA driver's files (``driver/nvidia``) and ``devices`` are read. Another root than
/proc is for tests and labs without a GPU.
""",
    ),
    cfg.ListOpt(
        "cdi_spec_dirs",
        default=["/etc/cdi", "/var/run/cdi"],
        help="""
Folders of Container Device Interface specifications, the later ones over the earlier. They say what
an LXC guest gets beside the device nodes: libraries, other files, environment. A file that is
not owned by root or can be written by everybody is refused.

Related options:

* ``[gpu]nvidia_modeset``
""",
    ),
    cfg.BoolOpt(
        "nvidia_modeset",
        default=False,
        help="""
Give LXC guests with NVIDIA cards ``/dev/nvidia-modeset`` too, where a CDI specification has it, as
those that ``nvidia-ctk`` writes do. It is for displays; CUDA does without it. Who has it can have
the kernel open any NVIDIA card of the host, other guests' included, whatever device nodes and
cgroups allow: turn it on only where all guests of the host are one tenant's, whom you trust.

Related options:

* ``[gpu]cdi_spec_dirs``
""",
    ),
)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make ``conf.gpu`` known.

    Calling it again changes nothing.
    """
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]:
    """Return the options for oslo-config-generator (entry point ``oslo.config.opts``)."""
    return [(GROUP, OPTS)]
