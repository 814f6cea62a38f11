# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash.compute SOCKET CONFIG IMAGE``: nova-compute as often as it is asked for.

A line on standard input has it fork: what takes a service so long to start is to import Nova, and
that is done once, before there is any thread. The fork's pid is written to standard output.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import sys
from multiprocessing import connection
from typing import Any, NoReturn

from nova import monkey_patch

monkey_patch.patch(backend="threading")

import fixtures  # noqa: E402
import nova.conf  # noqa: E402
import nova.db.main.api  # noqa: E402
import nova.privsep  # noqa: E402
import os_vif  # noqa: E402
from nova import config, context, objects, rpc, service  # noqa: E402
from nova.compute import manager as compute_manager  # noqa: E402
from nova.compute import rpcapi as compute_rpcapi  # noqa: E402
from nova.conductor import rpcapi as conductor_rpcapi  # noqa: E402
from nova.objects import base as objects_base  # noqa: E402
from nova.tests.fixtures import glance, neutron  # noqa: E402
from nova.virt.libvirt import driver  # noqa: E402, F401
from oslo_log import log as logging  # noqa: E402
from oslo_messaging.rpc import transport  # noqa: E402

import nova_gpu.virt.driver  # noqa: E402, F401
from nova_gpu.core.model import PciAddress  # noqa: E402
from tests.crash import bus, points, wire  # noqa: E402

CONF = nova.conf.CONF
_PR_SET_PDEATHSIG = 1

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


class Compute:
    """The service, and what the one who tests it may ask."""

    def __init__(self, socket: str, image: pathlib.Path) -> None:
        self._socket = socket
        self._image = image
        self._trap = points.Trap()
        self._service: Any = None

    def run(self, arguments: list[str]) -> NoReturn:
        config.parse_args(arguments, configure_db=False)
        logging.setup(CONF, "nova")
        nova.privsep.sys_admin_pctxt.set_client_mode(False)  # it is root already
        objects.register_all()
        os_vif.initialize()
        self._stand_in()
        link = self._connect()
        self._service.start()
        link.ask("started")
        signal.pause()
        os._exit(0)

    def _stand_in(self) -> None:
        """There is no Glance, and no Neutron."""
        test = _Test()
        test.setUp()
        images = test.useFixture(glance.GlanceFixture(test))
        content = self._image.read_bytes()
        images._imagedata[glance.GlanceFixture.image1["id"]] = content
        images.images[glance.GlanceFixture.image1["id"]]["size"] = len(content)
        test.useFixture(neutron.NeutronFixture(test))

    def _connect(self) -> wire.Link:
        bus_driver = bus.Driver(CONF)
        rpc.TRANSPORT = transport.msg_transport.RPCTransport(bus_driver)
        rpc.NOTIFICATION_TRANSPORT = rpc.TRANSPORT
        silent = rpc.messaging.Notifier(rpc.NOTIFICATION_TRANSPORT, driver="noop")
        rpc.LEGACY_NOTIFIER = rpc.NOTIFIER = silent
        handlers = {
            "deliver": bus_driver.deliver,
            "trap": self._trap.set,
            "period": self._period,
            "free": self._free,
        }
        link = bus_driver.link = wire.Link(connection.Client(self._socket), handlers)
        import threading

        threading.Thread(target=link.serve, daemon=True).start()
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
    def _manager(self) -> compute_manager.ComputeManager:
        return self._service.manager

    def _period(self) -> None:
        for task in _PERIODIC:
            getattr(self._manager, task)(context.get_admin_context())

    def _free(self) -> list[str]:
        """The addresses that a claim could be given now."""
        tracker = self._manager.rt
        gpus = self._manager.driver._gpus._stock
        found: set[PciAddress] = set()
        for uuid, classes in tracker.assigned_resources.items():
            tree = tracker.provider_tree.data(uuid)
            if "_gpu_" in tree.name:
                published = tree.resources["PGPU"]
                addresses = [PciAddress.parse(each.identifier) for each in published]
                assigned = classes.get("PGPU", set())
                named = {PciAddress.parse(each.identifier) for each in assigned}
                found |= gpus.usable(uuid, addresses, assigned) - named
        return sorted(map(str, found))


def _fork(socket: str, arguments: list[str], image: pathlib.Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        Compute(socket, image).run(arguments)
    finally:
        os._exit(1)


def main() -> None:
    socket, configuration, image = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    print("ready", flush=True)
    for _ in sys.stdin:
        arguments = ["nova-compute", "--config-file", configuration]
        print(_fork(socket, arguments, pathlib.Path(image)), flush=True)


if __name__ == "__main__":
    main()
