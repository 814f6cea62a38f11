# SPDX-License-Identifier: Apache-2.0
"""The one cloud of all tests, on the VM's libvirt and its QEMU driver."""

from __future__ import annotations

import logging
import pathlib
import unittest
from collections.abc import Callable
from typing import Any

import fixtures

from nova_gpu.conf import CONF
from tests.cloud import base
from tools.vfiolab import system

_KERNEL, _INITRAMFS = (f"{number:08d}-0000-4000-8000-000000000000" for number in (1, 2))
_COMMAND_LINE = "console=ttyS0 quiet panic=-1 tsc=unstable random.trust_cpu=on"
# What the tests have, while it is up.
current: Cloud


class Cloud(base.Cloud):
    # 256 MiB is what the guest's kernel and initramfs need.
    FLAVOR = {"memory_mb": 256, "vcpu": 1, "disk": 1, "ephemeral": 0}  # noqa: RUF012
    # With the machine to itself each of the things that are waited for takes 20 s at most.
    PATIENCE_S = 300
    # An answer of the API costs 0.3 s of the VM's only processor.
    POLL_S = 0.5

    work: Callable[[], Any]
    log: pathlib.Path

    def setUp(self) -> None:
        self._state = pathlib.Path(self.useFixture(fixtures.TempDir("/var/tmp")).path)
        self._state.chmod(0o711)
        super().setUp()

    def runTest(self) -> None:
        global current
        current = self
        self.work()

    def serve_images(self) -> None:
        for image, path, kind in (
            (_KERNEL, system.GUEST_KERNEL, "aki"),
            (_INITRAMFS, system.GUEST_INITRAMFS, "ari"),
        ):
            content = pathlib.Path(path).read_bytes()
            form = {"disk_format": kind, "container_format": kind, "size": len(content)}
            plain = {**self.glance.image1, "id": image, "name": kind, "properties": {}}
            self.glance.create(None, {**plain, **form})
            self.glance._imagedata[image] = content
        self.glance._imagedata[base.IMAGE] = bytes(1 << 20)
        self.glance.images[base.IMAGE].update(
            size=1 << 20,
            disk_format="raw",
            container_format="bare",
            properties={
                "kernel_id": _KERNEL,
                "ramdisk_id": _INITRAMFS,
                "os_command_line": _COMMAND_LINE,
            },
        )

    def set_host_flags(self) -> None:
        handler = logging.FileHandler(self.log)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(logging.INFO)
        self.flags(rpc_response_timeout=600, service_down_time=600, shutdown_timeout=5)
        self.flags(enabled=False, group="spice")
        # For what instances ask for by an alias, as Nova's documentation has it.
        enabled = [*CONF.filter_scheduler.enabled_filters, "PciPassthroughFilter"]
        self.flags(enabled_filters=enabled, group="filter_scheduler")
        self.flags(
            virt_type="kvm",
            connection_uri="qemu:///system",
            cpu_mode="host-passthrough",
            hw_machine_type=["x86_64=q35"],
            mem_stats_period_seconds=0,
            group="libvirt",
        )

    def console(self, server: dict[str, Any]) -> str:
        """What the guest has said since it was started: libvirt empties the file then."""
        file = self._state / "instances" / server["id"] / "console.log"
        return file.read_text(errors="replace") if file.exists() else ""


def run(work: Callable[[], Any], log: pathlib.Path) -> list[str]:
    """Does *work* while the cloud is up. Returns what went wrong with the cloud itself."""
    cloud = Cloud()
    cloud.work, cloud.log = work, log
    result = unittest.TestResult()
    cloud.run(result)
    return [text for _, text in (*result.errors, *result.failures)]
