# SPDX-License-Identifier: Apache-2.0
"""What Nova's databases say for ``nova-gpu-status``, where it may ask them: on a controller."""

from __future__ import annotations

import logging

from nova import context as nova_context
from nova import objects, rpc
from nova.db.api import api as api_db
from nova.db.main import api as main_db
from oslo_utils import importutils

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.core.flavor import request, validation
from nova_gpu.core.scheduling import stats

_profiler = importutils.try_import("osprofiler.opts")


def connect() -> None:
    """Set up the connection once, as Nova's own commands do"""
    objects.register_all()
    # Nova reads osprofiler's options to connect, where that is installed, and oslo.messaging's to
    # look into a cell. Its own commands have registered both when they parsed the command line
    # (nova.config.parse_args).
    if _profiler is not None:
        _profiler.set_defaults(CONF)
    rpc.init(CONF)
    # An operator waits, for whom ten attempts, ten seconds apart, are no better than one.
    for group in ("database", "api_database"):
        CONF.set_override("max_retries", 1, group)
        CONF.set_override("retry_interval", 0, group)
    logging.getLogger("oslo_db.sqlalchemy.engines").setLevel(logging.ERROR)
    main_db.configure(CONF)
    api_db.configure(CONF)


def flavors_with_mistakes() -> list[str]:
    """A line for each mistake of a flavor that says something of GPUs"""
    context = nova_context.get_admin_context()
    return [
        f"{flavor.name}: {mistake}"
        for flavor in objects.FlavorList.get_all(context)
        for mistake in validation.mistakes(request.of(flavor.extra_specs))
    ]


def hosts_of_another_version() -> list[str]:
    """A line for each host whose GPUs are told in another version than this one's: an older one
    tells less, a newer one cannot be read."""
    context = nova_context.get_admin_context()
    found = []
    for cell in objects.CellMappingList.get_all(context):
        if cell.is_cell0():
            continue
        with nova_context.target_cell(context, cell) as in_cell:
            for node in objects.ComputeNodeList.get_all(in_cell):
                text = (node.stats or {}).get(names.STATS)
                if text is not None and (reason := _differs(text)):
                    found.append(f"{node.hypervisor_hostname}: {reason}")
    return sorted(found)


def _differs(text: str) -> str | None:
    try:
        version = stats.version(text)
    except exception.InvalidStats as error:
        return str(error)
    return None if version == stats.VERSION else f"version {version}, not {stats.VERSION}"
