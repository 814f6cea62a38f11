# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options that say what becomes of a card between two guests."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

OPTS: Sequence[cfg.Opt] = (
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
)
