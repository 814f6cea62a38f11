# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about cards that are given in parts."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

from nova_gpu.core.vgpu.vgpu_capacity import Order

OPTS: Sequence[cfg.Opt] = (
    cfg.ListOpt(
        "vgpu_types",
        default=["*"],
        help="""
Types of vGPUs that are offered, by id (``nvidia-35``) or name (``GRID P4-2Q``), each with ``*``,
``?`` and ``[...]`` as in file names. A card whose driver makes vGPUs of one of them is offered in
parts and never whole; any other card is offered whole. Empty: all cards are offered whole, but for
those in MIG mode where guests are containers, which are then not offered. There the types are the
profiles of MIG instances (``1g.18gb``), and no others.

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
SR-IOV virtual functions that cards are to have, as many as stand behind a card's PCI address
(``0000:3b:00.0=4``) or product (``8086:56c0=4``); the address has precedence. They are enabled when
nova-compute starts, unless an instance has the card whole, and no driver of the host takes them
(``sriov_drivers_autoprobe``). A card that has some already keeps those. NVIDIA's cards are to have
all that they can have: its own ``/usr/lib/nvidia/sriov-manage`` enables them, and its driver takes
them; a card that has GPU instances stays as it is, as these would be lost. AMD's cards get theirs
from the module gim as it is loaded (``modprobe gim vf_num=8``), and never here. A card that is
named here is never offered whole, also where it could not be given its functions. Only where guests
are KVM's or QEMU's.

Related options:

* ``[gpu]vgpu_types`` says whether they are offered.
* ``[gpu]bind_timeout``
""",
    ),
    cfg.ListOpt(
        "mig_profile",
        default=[],
        help="""
MIG instances that NVIDIA's cards are to have: the profile that stands behind a card's PCI address
(``0000:3b:00.0=3g.71gb``) or product (``10de:2335=1g.18gb``); the address has precedence. When
nova-compute starts it turns MIG mode on and makes as many of them as the card has room for, each
with one compute instance, unless an instance has the card whole. A card that has any already is
left as it is: a layout of several profiles is for nvidia-smi or nvidia-mig-parted. A card that is
named here is never offered whole, also where it could not be divided. Only where guests are
containers.

Related options:

* ``[gpu]vgpu_types`` says whether they are offered.
* ``[gpu]bind_timeout``
""",
    ),
    cfg.StrOpt(
        "vgpu_order",
        default=Order.DEPTH_FIRST,
        choices=[
            (Order.DEPTH_FIRST, "the card that has the least room left: whole cards stay free"),
            (Order.BREADTH_FIRST, "the card that has the most room left: few share a card"),
        ],
        help="""
Which of this host's cards the next vGPU of an instance is made at. Of cards with equal room it is
the first by PCI address.

Related options:

* ``[gpu]vgpu_types``
""",
    ),
)
