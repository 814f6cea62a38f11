# SPDX-License-Identifier: Apache-2.0
"""The same cloud with its nova-compute in a process of its own, here or on another machine."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, ClassVar
from wsgiref import simple_server

from nova import context as nova_context
from nova import objects
from placement import deploy

from nova_gpu.conf import CONF
from tests.cloud import base, bus, wire

HOST = "compute"


class _PlacementServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass

    def address_string(self) -> str:
        return str(self.client_address[0])


class Apart(base.Cloud):
    """What its subclasses say: where the process is, and how it is started and ended."""

    # What nova-compute reads of the options that the test has set here.
    OPTIONS: ClassVar[Mapping[str, Sequence[str]]] = {"DEFAULT": ("compute_driver",)}
    START_TIMEOUT_S: ClassVar[float] = 60.0
    # Where nova-compute finds this machine
    HERE: ClassVar[str] = "127.0.0.1"

    _link: wire.Link

    def own_options(self) -> Iterator[str]:
        """The lines of the further options, each below the line of its group."""
        yield from ()

    def listener(self) -> connection.Listener:
        """Where nova-compute connects to."""
        raise NotImplementedError

    def start_process(self, configuration: str) -> None:
        """Starts a nova-compute with that content of its configuration file."""
        raise NotImplementedError

    def kill_process(self) -> None:
        """At once, if it is not dead already."""
        raise NotImplementedError

    def compute_log(self) -> str:
        """What nova-compute has logged."""
        raise NotImplementedError

    # Its side of the cloud

    def _setup_compute_service(self) -> None:
        self._exchange = bus.Exchange()
        self._listener = self.listener()
        self._placement = self._serve_placement()
        self._map_host()
        self.addCleanup(self.kill_compute)
        self.start_compute()

    def _serve_placement(self) -> str:
        app = deploy.loadapp(self.placement_fixture.conf_fixture.conf)
        server = simple_server.make_server("127.0.0.1", 0, app, _PlacementServer, _Quiet)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://{self.HERE}:{server.server_port}"

    def _map_host(self) -> None:
        cell = self.cell_mappings["cell1"]
        context = nova_context.get_admin_context()
        objects.HostMapping(context=context, host=HOST, cell_mapping=cell).create()

    def _configuration(self) -> Iterator[str]:
        for group, names in self.OPTIONS.items():
            yield f"[{group}]"
            section = CONF if group == "DEFAULT" else CONF[group]
            for name in names:
                value = section[name]
                for each in value if isinstance(value, list) else [value]:
                    if each is not None:
                        yield f"{name} = {each}"
        yield "[DEFAULT]"
        yield f"host = {HOST}"
        # What its periodic tasks do is done when a test says so.
        yield "periodic_enable = false"
        yield "running_deleted_instance_timeout = 0"
        yield "[placement]"
        yield "auth_type = admin_token"
        yield f"endpoint = {self._placement}"
        yield f"endpoint_override = {self._placement}"
        yield "token = admin"
        yield from self.own_options()

    # The process

    def start_compute(self) -> None:
        """And waits until it serves.

        :raises AssertionError: with its log's end, where it does not
        """
        started = threading.Event()
        self.start_process("\n".join(self._configuration()) + "\n")
        handlers: wire.Handlers = {
            "send": self._exchange.send,
            "listen": self._exchange.listen,
            "started": started.set,
        }
        self._link = wire.Link(self._listener.accept(), handlers)
        self._exchange.attach(self._link)
        self._serving = threading.Thread(target=self._link.serve, daemon=True)
        self._serving.start()
        if not started.wait(self.START_TIMEOUT_S):
            self.fail(f"nova-compute does not start:\n{self.compute_log()[-4000:]}")

    def kill_compute(self) -> None:
        self.kill_process()
        self._serving.join()
        self._exchange.detach()

    def restart_compute(self) -> None:
        """It dies without a word, and another one has to find everything out again."""
        self.kill_compute()
        self.start_compute()

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Something of nova-compute itself."""
        return self._link.ask(verb, *arguments, timeout_s=self.PATIENCE_S)

    def _run_periodics(self) -> None:
        """Of its periodic tasks those that mend something."""
        self.ask("period")
