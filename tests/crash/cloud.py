# SPDX-License-Identifier: Apache-2.0
"""A cloud whose nova-compute is a process of its own, which may be killed at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any
from wsgiref import simple_server

from nova import context as nova_context
from nova import objects
from placement import deploy

from nova_gpu.conf import CONF
from tests.crash import bus, wire
from tests.lxc import base, place

HOST = "compute"
_START_TIMEOUT_S = 60.0
# What the service's process reads of the options that the test has set.
_OPTIONS = {
    "DEFAULT": (
        *("compute_driver", "state_path", "instances_path", "shutdown_timeout", "my_ip"),
        *("use_cow_images", "allow_resize_to_same_host"),
    ),
    "vnc": ("enabled",),
    "libvirt": (
        *("virt_type", "connection_uri", "images_type", "uid_maps", "gid_maps"),
        *("wait_soft_reboot_seconds",),
    ),
    "gpu": ("sysfs_root", "proc_root", "cdi_spec_dirs", "nvml", "handed_out_timeout"),
}


class _PlacementServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass

    def address_string(self) -> str:
        return str(self.client_address[0])


class Cloud(base.LXCTestCase):
    def set_host_flags(self) -> None:
        super().set_host_flags()
        self.flags(allow_resize_to_same_host=True, rpc_response_timeout=20)
        # It reports for the first time five seconds after its start, and seldom lives so long.
        self.flags(service_down_time=3600)
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")

    # The service's process

    def _setup_compute_service(self) -> None:
        self._exchange = bus.Exchange()
        self._socket = str(self._state / "bus")
        self._listener = connection.Listener(self._socket)
        self.addCleanup(self._listener.close)
        self.compute_log = self._state / "nova-compute.log"
        config = self._state / "nova-compute.conf"
        config.write_text("\n".join(self._configuration(self._serve_placement())) + "\n")
        image = place.folder() / "image.raw"
        argv = [sys.executable, "-m", "tests.crash.compute", self._socket, str(config), str(image)]
        self._forker = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(self._end_server)
        assert self._forker.stdout
        self._forker.stdout.readline()
        self._map_host()
        self.start_compute()

    def _end_server(self) -> None:
        self.kill_compute()
        self._forker.communicate(timeout=20)

    def _configuration(self, placement: str) -> Iterator[str]:
        for group, names in _OPTIONS.items():
            yield f"[{group}]"
            section = CONF if group == "DEFAULT" else CONF[group]
            if group == "DEFAULT":
                yield f"host = {HOST}"
                yield f"log_file = {self.compute_log}"
                yield "debug = true"
                yield "rpc_response_timeout = 60"
                yield "running_deleted_instance_timeout = 0"
                yield "periodic_enable = false"
            for name in names:
                value = section[name]
                for each in value if isinstance(value, list) else [value]:
                    yield f"{name} = {each}"
        yield "[oslo_concurrency]"
        yield f"lock_path = {self._state}/locks"
        yield "[placement]"
        yield "auth_type = admin_token"
        yield f"endpoint = {placement}"
        yield f"endpoint_override = {placement}"
        yield "token = admin"

    def _serve_placement(self) -> str:
        app = deploy.loadapp(self.placement_fixture.conf_fixture.conf)
        server = simple_server.make_server("127.0.0.1", 0, app, _PlacementServer, _Quiet)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def _map_host(self) -> None:
        cell = self.cell_mappings["cell1"]
        context = nova_context.get_admin_context()
        objects.HostMapping(context=context, host=HOST, cell_mapping=cell).create()

    def start_compute(self) -> None:
        """And waits until it serves.

        :raises AssertionError: with its log's end, where it does not
        """
        started = threading.Event()
        assert self._forker.stdin and self._forker.stdout
        print("start", file=self._forker.stdin, flush=True)
        self.pid = int(self._forker.stdout.readline())
        handlers = {
            "send": self._exchange.send,
            "listen": self._exchange.listen,
            "started": started.set,
        }
        self._link = wire.Link(self._listener.accept(), handlers)
        self._exchange.attach(self._link)
        self._serving = threading.Thread(target=self._link.serve, daemon=True)
        self._serving.start()
        if not started.wait(_START_TIMEOUT_S):
            self.fail("nova-compute does not start:\n" + self.compute_log.read_text()[-4000:])

    def kill_compute(self) -> None:
        """At once, if it is not dead already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._serving.join()
        self._exchange.detach()

    def is_dead(self) -> bool:
        return not self._serving.is_alive()

    def ask(self, verb: str, *arguments: Any) -> Any:
        return self._link.ask(verb, *arguments, timeout_s=60)

    def period(self) -> None:
        """One run of the periodic tasks that mend something."""
        self.ask("period")

    def _delete_everything(self) -> None:
        if self.is_dead():
            self.start_compute()
        super()._delete_everything()
