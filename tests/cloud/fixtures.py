# SPDX-License-Identifier: Apache-2.0
"""What lets Nova's own test base meet a real host and a real libvirt."""

from __future__ import annotations

import socketserver
import threading
from typing import Any, BinaryIO
from wsgiref import simple_server

import fixtures
import libvirt
import nova.privsep
from nova.tests.fixtures import glance
from nova.virt.libvirt import host as libvirt_host
from placement import deploy

# What Nova's test base does to keep tests off the machine: libvirt, sysfs, uname, privsep.
_POISONS = (
    "GenericPoisonFixture",
    "ImportModulePoisonFixture",
    "PoisonFunctions",
    "PrivsepNoHelperFixture",
    "SysFsPoisonFixture",
)


class _Nothing(fixtures.Fixture):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


class RealHost(fixtures.Fixture):
    """To be used before ``nova.test.TestCase.setUp``: the tests are root and may do everything."""

    def _setUp(self) -> None:
        for name in _POISONS:
            self.useFixture(fixtures.MonkeyPatch(f"nova.tests.fixtures.{name}", _Nothing))
        self.useFixture(
            fixtures.MockPatchObject(nova.privsep.sys_admin_pctxt, "client_mode", False)
        )


class OneEventLoop(fixtures.Fixture):
    """One libvirt event loop in the process, whatever the number of compute services.

    Nova starts a thread for it with every Host, and another that waits for ever for a lost
    connection, on which the end of a test would wait as well.
    """

    _lock = threading.Lock()
    _runs = False

    def _setUp(self) -> None:
        self.useFixture(
            fixtures.MockPatchObject(
                libvirt_host._ThreadingLibvirtEventHandler, "start", self._start
            )
        )
        self.useFixture(
            fixtures.MockPatchObject(libvirt_host.Host, "_conn_event_thread", lambda host: None)
        )

    @classmethod
    def _start(cls) -> None:
        with cls._lock:
            if not cls._runs:
                libvirt.virEventRegisterDefaultImpl()
                threading.Thread(target=cls._run, daemon=True).start()
                cls._runs = True

    @staticmethod
    def _run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()


class KeptUploads(fixtures.Fixture):
    """What Nova uploads as the content of an image is there when it is asked for.

    Nova's fixture forgets the content of an image that was made before, as a snapshot's is.
    """

    def _setUp(self) -> None:
        update = glance.GlanceFixture.update

        def kept(
            self: glance.GlanceFixture,
            context: Any,
            image_id: str,
            metadata: dict[str, Any],
            data: BinaryIO | None = None,
            purge_props: bool = False,
        ) -> Any:
            if data is not None:
                self._imagedata[image_id] = content = data.read()
                metadata = {**metadata, "size": len(content)}
            return update(self, context, image_id, metadata, purge_props=purge_props)

        self.useFixture(fixtures.MockPatchObject(glance.GlanceFixture, "update", kept))


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests: list[str] = []


class _Handler(simple_server.WSGIRequestHandler):
    server: _Server

    def log_request(self, *args: Any) -> None:
        self.server.requests.append(f"{self.command} {self.path}")

    def log_message(self, *args: Any) -> None:
        pass


class PlacementServer(fixtures.Fixture):
    """Placement with *conf* on a port of this machine, for other processes.

    ``requests`` are the method and the path of each request.
    """

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self._conf = conf

    def _setUp(self) -> None:
        app = deploy.loadapp(self._conf)
        server = simple_server.make_server("127.0.0.1", 0, app, _Server, _Handler)
        self.port, self.requests = server.server_port, server.requests
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
