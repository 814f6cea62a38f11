# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about cards that are divided into vGPUs or MIG instances."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from nova_gpu.core.vgpu.vgpu_capacity import Order

OPTS: Sequence[cfg.Opt] = (
    cfg.ListOpt(
        "vgpu_types",
        default=["*"],
        help="""
vGPU types to offer, by id (``nvidia-35``) or name (``GRID P4-2Q``); ``*``, ``?`` and ``[...]`` work
as in file names. ``vf`` is any virtual function without a type. A card whose driver makes vGPUs of
one of these types is offered in parts and never whole; any other card is offered whole. Empty: all
cards are offered whole, except cards in MIG mode on hosts of containers, which are not offered. On
such hosts the types are the profiles of
MIG instances (``1g.18gb``).

Related options:

* ``[devices]enabled_mdev_types``: cards that Nova itself divides are not offered, neither whole nor
  in parts.
* ``[gpu]vgpu_order``
""",
    ),
    cfg.ListOpt(
        "virtual_functions",
        default=[],
        help="""
Number of SR-IOV virtual functions per card, by the card's PCI address (``0000:3b:00.0=4``) or
product (``8086:56c0=4``); the address takes precedence. nova-compute enables them at its start if
no instance has the card whole, and keeps the host's drivers from taking them
(``sriov_drivers_autoprobe``). A card that has functions already keeps those. For NVIDIA's cards set
the largest number that they support: NVIDIA's ``/usr/lib/nvidia/sriov-manage`` enables all
functions, and NVIDIA's driver takes them. A card with GPU instances is not changed, as these would
be lost. AMD's module gim makes the functions of AMD's cards when it is loaded, as many as its
parameter ``vf_num`` says; do not name those here. A card named here is never offered whole, even if
its functions could not be enabled. Only for hosts of KVM or QEMU guests.

Related options:

* ``[gpu]vgpu_types`` says whether they are offered.
* ``[gpu]bind_timeout``
""",
    ),
    cfg.MultiStrOpt(
        "divide_command",
        default=[],
        help="""
A program of yours that prepares a card of NVIDIA's after its virtual functions are enabled and
before a guest gets one, where ``[gpu]mig_profile``, ``[gpu]vgpu_mixed_sizes`` and
``[gpu]vgpu_scheduler`` do not suffice: GPU instances of several profiles (``nvidia-smi mig -cgi ...
-C``), a scheduler's time slice. It runs after what these set. Set the option once for the absolute
path of the program and once for each argument, in this order. There is no shell. nova-compute runs
it as root at its first start after a boot of the host or a change of these options, for each card
that ``[gpu]virtual_functions`` names, with ``NOVA_GPU_ADDRESS`` and ``NOVA_GPU_PRODUCT`` in its
environment, and not for a card that has vGPUs. If it fails, the card is not given, and it runs
again at the next start: so it must be repeatable. Only root may own and be able to write the
program and all folders above it. Only for hosts of KVM or QEMU guests; if it runs for no card of
the host, nova-compute's log says so.

Related options:

* ``[gpu]virtual_functions``
* ``[gpu]bind_timeout`` limits its time.
""",
    ),
    cfg.ListOpt(
        "mig_profile",
        default=[],
        help="""
MIG profile for NVIDIA's cards, by the card's PCI address (``0000:3b:00.0=3g.71gb``) or product
(``10de:2335=1g.18gb``); the address takes precedence. At its start nova-compute turns MIG mode on
and makes as many instances of the profile as the card has room for, each with one compute instance,
if no instance of Nova has the card whole. A card named here is never offered whole, even if it
could not be divided.

On hosts of containers a card that has MIG instances is not changed: make a layout of several
profiles with nvidia-smi or nvidia-mig-parted. On hosts of KVM or QEMU guests the GPU instances are
for MIG-backed vGPUs, and the card must also be in ``[gpu]virtual_functions``: MIG mode is turned on
before its functions are enabled, the instances are made afterwards, once after each boot of the
host, and a card that has vGPUs is not changed. Otherwise the card is not given. Compute instances
that guests of a card have deleted are made again before its next guest.

Related options:

* ``[gpu]vgpu_types`` says whether they are offered.
* ``[gpu]virtual_functions``
* ``[gpu]bind_timeout``
""",
    ),
    cfg.ListOpt(
        "vgpu_mixed_sizes",
        default=[],
        help="""
Whether vGPUs of several memory sizes may share a card of NVIDIA's, by the card's PCI address
(``0000:3b:00.0=true``) or product (``10de:26b9=true``); the address takes precedence. Without it
the first vGPU fixes the size until the card has none. With it a card carries fewer of most types.
nova-compute sets it once after each boot of the host and each change of the options that prepare
the card, when it has enabled the card's virtual functions, unless the card has vGPUs; if that
fails, the card is not given. The card must also be in ``[gpu]virtual_functions``.

Related options:

* ``[gpu]virtual_functions``
* ``[gpu]vgpu_scheduler``: ``fixed_share`` excludes it.
""",
    ),
    cfg.ListOpt(
        "vgpu_scheduler",
        default=[],
        help="""
Scheduler of the vGPUs of NVIDIA's cards, by the card's PCI address (``0000:3b:00.0=equal_share``)
or product (``10de:26b9=fixed_share``); the address takes precedence. ``best_effort``, NVIDIA's
default, gives each vGPU what the others leave, and guarantees none a share; ``equal_share`` divides
the card's time among the vGPUs that run, ``fixed_share`` by the largest number of the type. It is
set when and as ``[gpu]vgpu_mixed_sizes`` is. Not for cards in MIG mode.

Related options:

* ``[gpu]virtual_functions``
* ``[gpu]divide_command`` can set a time slice.
""",
    ),
    cfg.ListOpt(
        "vgpu_params",
        default=["enable_uvm", "enable_debugging", "enable_profiling", "frame_rate_limiter"],
        help="""
Names of the parameters of NVIDIA's vGPUs that ``gpu:vgpu_params`` of a flavor may set on this host.
Profilers fix the clocks of the card, for the guests of its other vGPUs, too.
""",
    ),
    cfg.StrOpt(
        "vgpu_order",
        default=Order.DEPTH_FIRST,
        choices=[
            (Order.DEPTH_FIRST, "the card with the least room left: whole cards stay free"),
            (Order.BREADTH_FIRST, "the card with the most room left: few vGPUs share a card"),
        ],
        help="""
Which card of this host the next vGPU is made on. Among cards with equal room, the first by PCI
address is chosen.

Related options:

* ``[gpu]vgpu_types``
""",
    ),
)
