# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options about boards with NVSwitches."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

OPTS: Sequence[cfg.Opt] = (
    cfg.StrOpt(
        "fabric_manager_address",
        default="127.0.0.1:6666",
        help="""
Address of NVIDIA's Fabric Manager: an IPv4 address with or without a port
(``FM_CMD_BIND_INTERFACE`` and ``FM_CMD_PORT_NUMBER`` in ``fabricmanager.cfg``), or the path of its
Unix socket (``FM_CMD_UNIX_SOCKET_PATH``). Used on KVM hosts whose cards are on a board with
NVSwitches.

Related options:

* ``[gpu]nvml``: only NVML reports which module of its board a card is.
""",
    ),
)
