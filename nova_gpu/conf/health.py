# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about cards that fall ill."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

OPTS: Sequence[cfg.Opt] = (
    cfg.IntOpt(
        "health_interval",
        default=60,
        min=1,
        max=86400,
        help="""
Seconds that pass at least before NVML is asked again how the cards are. It is asked in the periodic
task that updates the host's resources, hence not more often than that runs. What sysfs tells is
read every time.

Related options:

* ``[DEFAULT]update_resources_interval`` is the period of that task.
* ``[gpu]nvml`` and ``[gpu]nvml_timeout``
""",
    ),
)
