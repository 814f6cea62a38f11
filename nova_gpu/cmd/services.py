# SPDX-License-Identifier: Apache-2.0
"""The services that a command reads as nova-compute does: conductor, Placement, libvirt."""

from __future__ import annotations

from typing import Any

import nova.db.main.api
from nova import config as nova_config
from nova import objects, rpc
from nova.conductor import rpcapi as conductor_rpcapi
from nova.objects import base as objects_base
from nova.scheduler.client import report
from nova.virt.libvirt import host as libvirt_host
from oslo_messaging import opts as messaging_opts

from nova_gpu.cmd import this_host
from nova_gpu.cmd.options import default_files
from nova_gpu.conf import CONF
from nova_gpu.core import boundary


def read_options(line: list[str]) -> None:
    """Parse the command line and the configuration files again, with all of Nova's options.

    The client of Placement, the message bus and the conductor's client need these.

    :param line: the command line, the program's name included
    :raises cfg.Error, OSError, ValueError: as :func:`nova_gpu.cmd.options.read`
    """
    CONF.clear()
    nova_config.parse_args(
        line,
        default_files("nova-gpu"),
        configure_db=False,
        init_rpc=False,
        prog="nova-gpu",
    )


def connect() -> None:
    """Let Nova's objects call the conductor, as nova-compute does (``nova.cmd.compute.main``).

    :raises boundary.Failure: if the message bus cannot be used; the text has the remedy
    """
    with boundary.crossed():
        objects.register_all()
        _write_no_queue_number()
        rpc.init(CONF)
        nova.db.main.api.DISABLE_DB_ACCESS = True
        objects_base.NovaObject.indirection_api = conductor_rpcapi.ConductorAPI()


def _write_no_queue_number() -> None:
    """Let the queue for answers have a random name, whatever nova-compute's has.

    With ``[oslo_messaging_rabbit]use_queue_manager`` oslo.messaging writes the queue's number into
    a file in /dev/shm, under a lock in ``[oslo_concurrency]lock_path``.
    """
    for group, options in messaging_opts.list_opts():
        if any(option.dest == "use_queue_manager" for option in options):
            CONF.register_opts(options, group)
            CONF.set_override("use_queue_manager", False, group)


def no_bus(error: boundary.Failure) -> str:
    """Return the line for the operator about an error of :func:`connect`."""
    return f"nova-gpu: no message bus: {error}; see [DEFAULT]transport_url"


def libvirt(*, read_only: bool = True) -> libvirt_host.Host:
    """Return a connection to libvirt by Nova's class; it receives no events."""
    host = libvirt_host.Host(this_host.uri(), read_only=read_only)
    # The errors are raised as well, and what subscribes to events does not complain of them.
    libvirt_host.libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt_host.libvirt.virEventRegisterDefaultImpl()
    return host


class Placement:
    """Nova's report client for Placement, created on first use, because that needs Keystone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(report.report_client_singleton(), name)
