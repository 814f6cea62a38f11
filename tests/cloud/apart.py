# SPDX-License-Identifier: Apache-2.0
"""The same cloud, each nova-compute in a process of its own, here or on another machine."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, ClassVar, NoReturn

from nova import context as nova_context
from nova import objects

from nova_gpu.conf import CONF
from tests.cloud import base, bus, images, snapshot, wire
from tests.cloud import fixtures as cloud_fixtures

_POLL_S = 0.1
# For an answer that takes no time
_PATIENCE_S = 30.0


class _Service:
    """One nova-compute: what it and the rest of the cloud say to each other, while it lives."""

    def __init__(self, listener: connection.Listener, snapshots: images.Snapshots) -> None:
        self._acceptor = wire.Acceptor(listener)
        self._exchange = bus.Exchange()
        self._snapshots = snapshots
        self.link: wire.Link
        self._started: threading.Event
        self._serving: threading.Thread | None = None

    def accept(self, is_dead: Callable[[], bool], timeout_s: float) -> None:
        """The one that is being started.

        :raises tests.cloud.wire.Gone: where it dies before it connects, or does not in time
        """
        self._serving = None
        stream = self._acceptor.accept(is_dead, timeout_s)
        self._started = threading.Event()
        handlers: wire.Handlers = {
            "send": self._exchange.send,
            "listen": self._exchange.listen,
            "started": self._started.set,
            images.VERB: self._snapshots.answer,
        }
        self.link = wire.Link(stream, handlers)
        self._exchange.attach(self.link)
        self._serving = threading.Thread(target=self.link.serve, daemon=True)
        self._serving.start()

    def accept_command(self, is_dead: Callable[[], bool], timeout_s: float) -> None:
        """Accept a process that asks the other services and ends, next to this one or without it.

        :raises tests.cloud.wire.Gone: as :meth:`accept`
        """
        stream = self._acceptor.accept(is_dead, timeout_s)
        link = wire.Link(stream, {"send": self._exchange.send})
        threading.Thread(target=link.serve, daemon=True).start()

    def serves(self, timeout_s: float) -> bool:
        """Whether it does in time, and has not died instead"""
        deadline = time.monotonic() + timeout_s
        while not (serves := self._started.wait(_POLL_S)):
            if self.is_dead() or time.monotonic() > deadline:
                break
        return serves

    def is_dead(self) -> bool:
        return self._serving is None or not self._serving.is_alive()

    def given(self) -> list[str]:
        """Return what it was given last, as :meth:`tests.cloud.bus.Exchange.given`."""
        return self._exchange.given()

    def bury(self) -> None:
        """It has been killed."""
        if self._serving is not None:
            self._serving.join()
            self._exchange.detach()


class Apart(base.Cloud):
    """What its subclasses say: where the processes are, and how they are started and ended."""

    HOSTS: Sequence[str] = (wire.HOST,)
    # What nova-compute reads of the options that the test has set here.
    OPTIONS: ClassVar[Mapping[str, Sequence[str]]] = {"DEFAULT": ("compute_driver",)}
    START_TIMEOUT_S: ClassVar[float] = 60.0
    # Where nova-compute finds this machine
    HERE: ClassVar[str] = "127.0.0.1"

    def own_options(self, host: str) -> Iterator[str]:
        """The lines of the further options, each below the line of its group."""
        yield from ()

    def listener(self, host: str) -> connection.Listener:
        """Where its nova-compute connects to."""
        raise NotImplementedError

    def start_process(self, host: str, configuration: str) -> None:
        """Starts a nova-compute with that content of its configuration file."""
        raise NotImplementedError

    def has_process(self, host: str) -> bool:
        """Whether the one that was started last is alive."""
        raise NotImplementedError

    def kill_process(self, host: str) -> None:
        """At once, if it is not dead already."""
        raise NotImplementedError

    def compute_log(self, host: str = wire.HOST) -> str:
        """What its nova-compute has logged."""
        raise NotImplementedError

    # Its side of the cloud

    def _setup_compute_service(self) -> None:
        self._placement = self._serve_placement()
        self.useFixture(cloud_fixtures.KeptUploads())
        snapshots = images.Snapshots(self.glance)
        self._services = {host: _Service(self.listener(host), snapshots) for host in self.HOSTS}
        for host in self.HOSTS:
            self._map_host(host)
            self._launch(host)
            self.addCleanup(self.kill_compute, host)
        for host in self.HOSTS:
            self._expect_served(host)

    def _serve_placement(self) -> str:
        conf = self.placement_fixture.conf_fixture.conf
        server = self.useFixture(cloud_fixtures.PlacementServer(conf))
        return f"http://{self.HERE}:{server.port}"

    def _map_host(self, host: str) -> None:
        cell = self.cell_mappings["cell1"]
        context = nova_context.get_admin_context()
        objects.HostMapping(context=context, host=host, cell_mapping=cell).create()

    def _configuration(self, host: str) -> Iterator[str]:
        for group, names in self.OPTIONS.items():
            yield f"[{group}]"
            section = CONF if group == "DEFAULT" else CONF[group]
            for name in names:
                value = section[name]
                for element in value if isinstance(value, list) else [value]:
                    if element is not None:
                        yield f"{name} = {element}"
        yield "[DEFAULT]"
        yield f"host = {host}"
        # What its periodic tasks do is done when a test says so.
        yield "periodic_enable = false"
        yield "running_deleted_instance_timeout = 0"
        yield "[placement]"
        yield "auth_type = admin_token"
        yield f"endpoint = {self._placement}"
        yield f"endpoint_override = {self._placement}"
        yield "token = admin"
        yield from self.own_options(host)

    # The processes

    def start_compute(self, host: str = wire.HOST) -> None:
        """And waits until it serves.

        :raises AssertionError: with its log's end, where it does not
        """
        self._launch(host)
        self._expect_served(host)

    def _launch(self, host: str) -> None:
        self.start_process(host, "\n".join(self._configuration(host)) + "\n")
        try:
            self._services[host].accept(lambda: not self.has_process(host), self.START_TIMEOUT_S)
        except wire.Gone:
            self._fail_to_start(host)

    def _expect_served(self, host: str) -> None:
        if not self._services[host].serves(self.START_TIMEOUT_S):
            self._fail_to_start(host)

    def _fail_to_start(self, host: str) -> NoReturn:
        how = "hangs at its start" if self.has_process(host) else "died at its start"
        raise AssertionError(f"nova-compute of {host} {how}:\n{self.compute_log(host)[-4000:]}")

    def is_dead(self, host: str = wire.HOST) -> bool:
        return self._services[host].is_dead()

    def kill_compute(self, host: str = wire.HOST) -> None:
        self.kill_process(host)
        self._services[host].bury()

    def restart_compute(self, host: str = wire.HOST) -> None:
        """It dies without a word, and another one has to find everything out again."""
        self.kill_compute(host)
        self.start_compute(host)

    def state_of_services(self) -> str:
        """Return what each nova-compute was given and logged last, and where its threads are."""
        return "".join(
            f"\n{host}:\n{state}" for host in self.HOSTS for state in self._state_of(host)
        )

    def _state_of(self, host: str) -> Iterator[str]:
        service = self._services[host]
        yield "\n".join(service.given())
        if not service.is_dead():
            try:
                yield str(service.link.ask("stacks", timeout_s=_PATIENCE_S))
            except (wire.Gone, wire.Failed, queue.Empty) as error:
                yield f"it does not say where its threads are: {error!r}"
        yield self.compute_log(host)[-8000:]

    def ask(self, verb: str, *arguments: Any, host: str = wire.HOST) -> Any:
        """Something of nova-compute itself."""
        return self._services[host].link.ask(verb, *arguments, timeout_s=self.PATIENCE_S)

    def _run_periodics(self) -> None:
        """Of their periodic tasks those that mend something."""
        for host in self.HOSTS:
            self.ask("period", host=host)

    def read_hosts(self) -> Iterator[snapshot.Host]:
        for host in self.HOSTS:
            if not self.is_dead(host):
                yield self.ask("snapshot", host=host)
