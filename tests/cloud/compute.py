# SPDX-License-Identifier: Apache-2.0
"""nova-compute as a fork of a process that has imported Nova, which takes a service so long.

To be imported first, before there is any thread.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import pathlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import connection
from typing import Any, NoReturn

from tests.cloud import imports  # noqa: F401  before anything else of Nova

# isort: split

import fixtures
import nova.conf
import nova.db.main.api
import nova.privsep
from nova import config, context, objects, rpc, service
from nova.compute import manager as compute_manager
from nova.compute import rpcapi as compute_rpcapi
from nova.conductor import rpcapi as conductor_rpcapi
from nova.objects import base as objects_base
from nova.tests.fixtures import glance, neutron, notifications
from oslo_log import log as logging
from oslo_messaging.rpc import transport

import nova_gpu.virt.driver  # noqa: F401
from tests.cloud import bus, images, snapshot, wire
from tests.fixtures import economy

economy.economize()
gc.freeze()
gc.enable()

CONF = nova.conf.CONF

# Calls of a thread that are shown
_DEPTH = 8
# Those of nova-compute's periodic tasks that mend what a crash left.
_PERIODIC = (
    "update_available_resource",
    "_sync_power_states",
    "_cleanup_running_deleted_instances",
    "_cleanup_incomplete_migrations",
    "_run_pending_deletes",
)


class _Test(fixtures.Fixture):
    """What Nova's fixtures ask of a test, for the length of a process."""

    def flags(self, **options: Any) -> None:
        for name, value in options.items():
            CONF.set_override(name, value)

    def stub_out(self, name: str, new: Any) -> None:
        self.useFixture(fixtures.MonkeyPatch(name, new))


def join_bus(
    stream: connection.Connection[Any, Any], handlers: Mapping[str, Callable[..., Any]]
) -> wire.Link:
    """Let Nova's RPC of this process go over a link, and return the link.

    :param handlers: what the other end may ask beside what is on the message bus
    """
    driver = bus.Driver(CONF)
    rpc.TRANSPORT = transport.msg_transport.RPCTransport(driver)
    rpc.NOTIFICATION_TRANSPORT = rpc.TRANSPORT
    silent = rpc.messaging.Notifier(rpc.NOTIFICATION_TRANSPORT, driver="noop")
    rpc.LEGACY_NOTIFIER = rpc.NOTIFIER = silent
    link = driver.link = wire.Link(stream, {"deliver": driver.deliver, **handlers})
    threading.Thread(target=link.serve, daemon=True).start()
    return link


def _stacks() -> str:
    """Return where each thread of this process is, the innermost call last."""
    frames = sys._current_frames()
    return "\n".join(
        f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident])[-_DEPTH:])}"
        for thread in threading.enumerate()
        if thread.ident in frames
    )


class Compute:
    """The service, and what the one who tests it may ask.

    :param serve_images: puts into Nova's stand-in for Glance what guests are started from
    """

    def __init__(self, serve_images: Callable[[glance.GlanceFixture], None]) -> None:
        self._serve_images = serve_images
        self._service: Any = None

    def handlers(self) -> Mapping[str, Callable[..., Any]]:
        return {"period": self._period, "snapshot": self._snapshot, "stacks": _stacks}

    def run(
        self, arguments: list[str], connect: Callable[[], connection.Connection[Any, Any]]
    ) -> NoReturn:
        """:param arguments: nova-compute's command line"""
        CONF.clear()  # of what the process that was forked had read
        config.parse_args(arguments, configure_db=False)
        logging.setup(CONF, "nova")
        nova.privsep.sys_admin_pctxt.set_client_mode(False)  # it is root already
        self._stand_in()
        link = self._connect(connect())
        self._service.start()
        link.ask("started")
        signal.pause()
        os._exit(0)

    def _stand_in(self) -> None:
        """There is no Glance, and no Neutron."""
        test = _Test()
        test.setUp()
        self._images = test.useFixture(images.Images(test))
        self._serve_images(self._images)
        test.useFixture(neutron.NeutronFixture(test))

    def _connect(self, stream: connection.Connection[Any, Any]) -> wire.Link:
        link = self._images.link = join_bus(stream, self.handlers())
        rpc.LEGACY_NOTIFIER = notifications.FakeNotifier(rpc.NOTIFICATION_TRANSPORT, "nova-compute")
        self._heard = snapshot.Heard(rpc.LEGACY_NOTIFIER)
        self._heard.setUp()
        nova.db.main.api.DISABLE_DB_ACCESS = True
        objects_base.NovaObject.indirection_api = conductor_rpcapi.ConductorAPI()
        objects.Service.enable_min_version_cache()
        self._service = service.Service.create(
            binary="nova-compute",
            topic=compute_rpcapi.RPC_TOPIC,
            topic_alt=compute_rpcapi.RPC_TOPIC_ALT,
        )
        return link

    @property
    def manager(self) -> compute_manager.ComputeManager:
        return self._service.manager

    def _snapshot(self) -> snapshot.Host:
        """What the oracle reads of this host"""
        roots = (CONF.gpu.sysfs_root, CONF.gpu.proc_root)
        host = snapshot.host(CONF.host, snapshot.System(*map(pathlib.Path, roots)), self.manager)
        return dataclasses.replace(
            host, bills=tuple(self._heard.bills), unprintable=tuple(self._heard.unprintable)
        )

    def _period(self) -> None:
        for task in _PERIODIC:
            getattr(self.manager, task)(context.get_admin_context())
