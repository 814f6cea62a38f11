# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about cards that fall ill."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg, types

from nova_gpu.core import health

OPTS: Sequence[cfg.Opt] = (
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
)
