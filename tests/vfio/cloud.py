# SPDX-License-Identifier: Apache-2.0
"""The one cloud of all tests: nova-compute in a VM, on its libvirt and QEMU, the rest here.

Under emulation Nova's Python would take four times as long as here, and be most of what a test
takes.
"""

from __future__ import annotations

import pathlib
import secrets
import threading
import types
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import fixtures

from lab.vm import OUTSIDE, cards, modules
from lab.vm import vm as vms
from nova_gpu.conf import CONF
from tests.cloud import apart, wire
from tests.vfio import images, place

# What a pretend vGPU has written to the guest's memory nothing tells: not the device, for which its
# kernel would have to have iommufd, nor the IOMMU. Such a device QEMU (8.1 and later) moves in a
# live migration only where it is told to.
MOVABLE = "-global vfio-pci.enable-migration=on"

# What the tests have, while it is up.
current: Cloud


class Remote:
    """The functions of *module*, called in the VM."""

    def __init__(self, ask: Callable[..., Any], module: str) -> None:
        self._ask = ask
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._ask("call", self._module, name, *arguments)


class VM:
    """The agent in a VM, and how it is found."""

    def __init__(self, out: pathlib.Path, line: vms.Line | None) -> None:
        self.out = out
        self.address = line.address if line else None
        self.key = secrets.token_hex()
        self.listener = connection.Listener(("127.0.0.1", 0), authkey=self.key.encode())
        self._stream: connection.Connection[Any, Any]

    @property
    def port(self) -> int:
        return int(self.listener.address[1])

    def wait(self) -> None:
        """Until it is up."""
        self._stream = self.listener.accept()
        self._stream.recv()

    def ask(self, *question: Any) -> Any:
        """:raises tests.cloud.wire.Failed: with what went wrong there"""
        self._stream.send(question)
        answer = self._stream.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def expect_alive(self) -> None:
        """Never returns where it is not: who booted it ends this process then."""
        try:
            self.ask("call", "os", "getpid")
        except (EOFError, OSError):
            threading.Event().wait()

    def end(self) -> None:
        self._stream.send(None)


class Cloud(apart.Apart):
    # For a guest with a card all of it is cleared and pinned before it starts.
    FLAVOR = {"memory_mb": 128, "vcpu": 1, "disk": 1, "ephemeral": 0}  # noqa: RUF012
    # With the machine to itself each of the things that are waited for takes 20 s at most.
    PATIENCE_S = 300
    POLL_S = 0.5
    START_TIMEOUT_S = 300
    HERE = OUTSIDE
    OPTIONS = {  # noqa: RUF012
        "DEFAULT": ("compute_driver", "report_interval"),
        "pci": ("device_spec", "alias"),
        "compute": ("cpu_dedicated_set",),
        "devices": ("enabled_mdev_types",),
        "gpu": ("guest_mmio_gib", "sysfs_root", "proc_root", "nvml", "product_ids"),
        "libvirt": (
            *("connection_uri", "cpu_mode", "gid_maps", "images_type", "uid_maps", "virt_type"),
            *("live_migration_downtime", "live_migration_downtime_steps"),
        ),
    }
    # Whose view of the VM's file system nova-compute has, by its pid; else its own.
    beside: int | None = None

    work: Callable[[], Any]
    vms: Mapping[str, VM]
    # The module that divides their cards
    sample: str
    # By host: lines of nova-compute's configuration, before which others do not count
    further: Mapping[str, Sequence[str]] = types.MappingProxyType({})

    def setUp(self) -> None:
        self._state = pathlib.Path(self.useFixture(fixtures.TempDir("/var/tmp")).path)
        self.HOSTS = tuple(self.vms)
        self.hosts = {name: Remote(vm.ask, "tests.vfio.host") for name, vm in self.vms.items()}
        self.host = self.hosts[wire.HOST]
        self.host_states = {
            name: Remote(vm.ask, "tests.vfio.kept") for name, vm in self.vms.items()
        }
        self.containers = Remote(self.vms[wire.HOST].ask, "tests.vfio.containers")
        super().setUp()

    def runTest(self) -> None:
        global current
        current = self
        self.work()

    def serve_images(self) -> None:
        images.describe(self.glance)

    def set_host_flags(self) -> None:
        self.flags(rpc_response_timeout=600, service_down_time=3600)
        self.flags(
            virt_type="kvm",
            connection_uri="qemu:///system",
            cpu_mode="host-passthrough",
            group="libvirt",
        )
        # For what instances ask for by an alias, or have cells, as Nova's documentation has it.
        further = ("PciPassthroughFilter", "NUMATopologyFilter")
        enabled = [*CONF.filter_scheduler.enabled_filters, *further]
        self.flags(enabled_filters=enabled, group="filter_scheduler")

    def prepare_host(self) -> None:
        for host in self.hosts.values():
            host.clean_with("/usr/bin/true")
            host.load(self.sample, f"parent={cards.OTHER}")
            if self.sample == modules.LINE:
                host.tell_qemu(MOVABLE)
            self.addCleanup(host.unload, self.sample)

    def own_options(self, host: str) -> Iterator[str]:
        yield from (
            "[DEFAULT]",
            f"state_path = {place.STATE}",
            f"instances_path = {place.INSTANCES}",
            f"log_file = {place.LOG}",
            "rpc_response_timeout = 600",
            "shutdown_timeout = 5",
            "[vnc]",
            "enabled = false",
            "[spice]",
            "enabled = false",
            "[libvirt]",
            "hw_machine_type = x86_64=q35",
            "mem_stats_period_seconds = 0",
            # What the tests of functions have the VM have.
            "[gpu]",
            f"clean_command = {place.CLEAN}",
            "virtual_functions = 8086:56c0=2, 10de:26b1=2",
        )
        if address := self.vms[host].address:
            yield from (
                "[libvirt]",
                "live_migration_scheme = tcp",
                f"live_migration_inbound_addr = {address}",
                # To libvirt the emulated processor is not even as good as itself.
                "[workarounds]",
                "skip_cpu_compare_on_dest = true",
                # Of a guest that comes Nova takes the kernel for a disk, of no known format.
                "disable_deep_image_inspection = true",
            )
        yield from self.further.get(host, ())

    # nova-compute

    def listener(self, host: str) -> connection.Listener:
        return self.vms[host].listener

    def start_process(self, host: str, configuration: str) -> None:
        self.vms[host].ask("start", configuration, self.beside)

    def has_process(self, host: str) -> bool:
        self.vms[host].expect_alive()
        return bool(self.vms[host].ask("has_compute"))

    def kill_process(self, host: str) -> None:
        self.vms[host].ask("kill")

    def command(
        self, *words: str, host: str = wire.HOST, killed_after: str = ""
    ) -> tuple[int, str]:
        """Run ``nova-gpu`` with these *words* on a host, whether nova-compute runs there or not.

        Return its exit status and what it has printed. It has nova-compute's options and bus.

        :param killed_after: the text of a line; the command is killed once it has printed it
        """
        vm, configuration = self.vms[host], "\n".join(self._configuration(host)) + "\n"
        vm.ask("begin_command", configuration, words, killed_after)
        self._services[host].accept_command(lambda: not vm.ask("has_command"), self.START_TIMEOUT_S)
        status, output = vm.ask("end_command")
        return status, output

    def compute_log(self, host: str = wire.HOST) -> str:
        file = self.vms[host].out / place.LOG.name
        return file.read_text(errors="replace") if file.exists() else ""

    def console(self, server: dict[str, Any], host: str = wire.HOST) -> str:
        """What the guest has said there since it was started: libvirt empties the file then."""
        file = place.INSTANCES / server["id"] / "console.log"
        return str(self.hosts[host].read(str(file)))


def run(work: Callable[[], Any], vms: Mapping[str, VM], sample: str = modules.NAME) -> list[str]:
    """Does *work* while the cloud is up. Returns what went wrong with the cloud itself. *sample*:
    the module that divides the VMs' cards"""
    cloud = Cloud()
    cloud.work, cloud.vms, cloud.sample = work, vms, sample
    result = unittest.TestResult()
    cloud.run(result)
    return [text for _, text in (*result.errors, *result.failures)]
