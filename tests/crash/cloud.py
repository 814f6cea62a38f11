# SPDX-License-Identifier: Apache-2.0
"""A cloud whose nova-compute is a process of its own, which may be killed at any time."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import connection

from tests.cloud import apart, wire
from tests.lxc import base
from tests.lxc import place as places


class Cloud(apart.Apart, base.LXCTestCase):
    OPTIONS = {  # noqa: RUF012
        "DEFAULT": (
            *("compute_driver", "state_path", "instances_path", "shutdown_timeout", "my_ip"),
            *("use_cow_images", "allow_resize_to_same_host"),
        ),
        "vnc": ("enabled",),
        "libvirt": (
            *("virt_type", "connection_uri", "images_type", "uid_maps", "gid_maps"),
            *("wait_soft_reboot_seconds",),
        ),
        "gpu": ("sysfs_root", "proc_root", "cdi_spec_dirs", "nvml", "claim_grace_period"),
    }

    def set_host_flags(self) -> None:
        super().set_host_flags()
        self.flags(allow_resize_to_same_host=True, rpc_response_timeout=20)
        # It reports for the first time five seconds after its start, and seldom lives so long.
        self.flags(service_down_time=3600)
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")

    def own_options(self, host: str) -> Iterator[str]:
        yield from (
            "[DEFAULT]",
            f"log_file = {self._log}",
            "debug = true",
            "rpc_response_timeout = 60",
            "[oslo_concurrency]",
            f"lock_path = {self._state}/locks",
        )

    # The service's process

    def prepare_host(self) -> None:
        super().prepare_host()
        self._log = self._state / "nova-compute.log"
        self._config = self._state / "nova-compute.conf"
        self._socket = str(self._state / "bus")
        image = places.folder() / "image.raw"
        words = [self._socket, str(self._config), str(image)]
        self._forker = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.compute", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self._forker.communicate, timeout=200)
        assert self._forker.stdout
        self._forker.stdout.readline()

    def listener(self, host: str) -> connection.Listener:
        listener = connection.Listener(self._socket)
        self.addCleanup(listener.close)
        return listener

    def start_process(self, host: str, configuration: str) -> None:
        pathlib.Path(self._config).write_text(configuration)
        assert self._forker.stdin and self._forker.stdout
        print("start", file=self._forker.stdin, flush=True)
        self.pid = int(self._forker.stdout.readline())

    def has_process(self, host: str) -> bool:
        return pathlib.Path(f"/proc/{self.pid}").exists()  # who forked it reaps it

    def kill_process(self, host: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def compute_log(self, host: str = wire.HOST) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _delete_everything(self) -> None:
        if self.is_dead():
            self.start_compute()
        super()._delete_everything()
