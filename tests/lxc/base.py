# SPDX-License-Identifier: Apache-2.0
"""The cloud of every test: API, scheduler, conductor, compute and Placement in this process."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import fixtures
import os_vif
from nova.tests.functional import integrated_helpers

from nova_gpu.conf import CONF
from tests.lxc import fixtures as lxc_fixtures
from tests.lxc import place
from tools.novalab import guest, image, libvirtd, nodes

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"  # image1 of Nova's GlanceFixture
BLUEPRINT = {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}
ID_MAPS = ["0:100000:65536"]
NO_DRIVER = "No such device or address"  # ENXIO: the cgroup lets through to no driver
PROVIDER = "_gpu_10de_1091_lxc"
REFUSED = "Operation not permitted"  # EPERM, the device cgroup's word


class LXCTestCase(integrated_helpers._IntegratedTestBase):  # type: ignore[misc]
    ADMIN_API = True
    microversion = "latest"
    CAST_AS_CALL = False  # as in a real cloud, and several instances at once

    # What a test class may say of its host
    UID_MAPS: Sequence[str] = ID_MAPS
    COMPUTE_DRIVER = "gpu.GPULibvirtDriver"

    def setUp(self) -> None:
        if place.FOLDER not in os.environ:
            self.skipTest("needs a libvirtd of its own: run python -m tests.lxc")
        self._lv = place.private_libvirtd()
        self._state = pathlib.Path(self.useFixture(fixtures.TempDir(str(place.folder()))).path)
        self._state.chmod(0o711)
        self._host = place.folder() / "host"
        self._expect_nothing_left(self._lv, self._lv.leftovers())
        self.useFixture(lxc_fixtures.RealHost())
        self.useFixture(lxc_fixtures.OneEventLoop())
        self.useFixture(lxc_fixtures.CellByContext())
        super().setUp()
        self.addCleanup(self._delete_everything)

    # The cloud

    def _setup_services(self) -> None:
        self._serve_image()
        self._set_flags()
        os_vif.initialize()
        self.prepare_host()
        super()._setup_services()

    def prepare_host(self) -> None:
        """For what must be there before the compute service starts."""

    def _set_flags(self) -> None:
        for folder in ("etc/nova", "instances"):
            (self._state / folder).mkdir(parents=True)
        shutil.copy(_api_paste(), self._state / "etc/nova")
        self.flags(
            compute_driver=self.COMPUTE_DRIVER,
            state_path=str(self._state),
            instances_path=str(self._state / "instances"),
            use_cow_images=False,
            shutdown_timeout=10,
        )
        self.flags(
            virt_type="lxc",
            connection_uri="lxc:///",
            images_type="raw",
            uid_maps=list(self.UID_MAPS),
            gid_maps=list(self.UID_MAPS),
            wait_soft_reboot_seconds=8,
            group="libvirt",
        )
        self.flags(enabled=False, group="vnc")
        self.flags(
            sysfs_root=str(self._host / "sys"),
            proc_root=str(self._host / "proc"),
            cdi_spec_dirs=[str(self._state / "cdi")],
            nvml=False,
            group="gpu",
        )
        enabled = [*CONF.filter_scheduler.enabled_filters, "GPUFilter"]
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "nova_gpu.scheduler.filters.GPUFilter",
            ],
            enabled_filters=enabled,
            group="filter_scheduler",
        )

    def _serve_image(self) -> None:
        content = (place.folder() / "image.raw").read_bytes()
        self.glance._imagedata[IMAGE] = content
        self.glance.images[IMAGE]["size"] = len(content)

    def stop_compute(self) -> None:
        compute = self.computes.pop("compute")
        compute.stop()
        # As with the end of its process: what happens from now on is for the next service.
        host = compute.manager.driver._host
        host._event_handler._lifecycle_event_handler = lambda event: None
        host.get_connection().close()

    def restart_compute(self) -> None:
        """A new driver object, which has to find everything out again."""
        if "compute" in self.computes:
            self.stop_compute()
        self._start_compute("compute")
        self.addCleanup(self._delete_everything)  # once more: this service is the first to end

    # Instances

    def flavor(self, **extra_specs: str) -> str:
        """A flavor that a busybox fits into; its id."""
        created: str = self._create_flavor(
            memory_mb=64, vcpu=1, disk=1, ephemeral=0, extra_spec=extra_specs
        )
        return created

    def boot(self, flavor: str, expected_state: str = "ACTIVE") -> dict[str, Any]:
        server: dict[str, Any] = self._create_server(
            flavor_id=flavor, image_uuid=IMAGE, networks="none", expected_state=expected_state
        )
        return server

    def boot_with(self, gpus: int) -> dict[str, Any]:
        return self.boot(self.flavor(gpus=f"= {gpus}"))

    def delete(self, server: dict[str, Any]) -> None:
        self.api.delete_server(server["id"])
        self.wait_for(
            f"{server['id']} is gone",
            lambda: all(each["id"] != server["id"] for each in self.api.get_servers(detail=False)),
        )

    def _wait_for_server_parameter(
        self, server: dict[str, Any], expected_params: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """What all of Nova's own helpers wait with, for five seconds at most."""
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.api.get_server(server["id"]))
            if found["status"] == "ERROR" != expected_params.get("status"):
                self.fail(f"{server['id']} is in ERROR: {found.get('fault')}")
            faulty = expected_params.get("status") != "ERROR" or "fault" in found
            return faulty and all(found[key] == expected_params[key] for key in expected_params)

        self.wait_for(str(expected_params), reached)
        return found

    def reboot(self, server: dict[str, Any], kind: str) -> None:
        """*kind* is ``SOFT`` or ``HARD``."""
        self.api.post_server_action(server["id"], {"reboot": {"type": kind}})
        self.wait_until(server, "ACTIVE")

    def wait_until(self, server: dict[str, Any], status: str) -> None:
        """In that status and with nothing going on."""
        expected = {"status": status, "OS-EXT-STS:task_state": None}
        self._wait_for_server_parameter(server, expected)

    def fault(self, server: dict[str, Any]) -> str:
        text: str = self.api.get_server(server["id"])["fault"]["message"]
        return text

    # Inside

    def domain(self, server: dict[str, Any]) -> str:
        name: str = self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:instance_name"]
        return name

    def run_inside(
        self, server: dict[str, Any], *argv: str, uid: int = 0
    ) -> subprocess.CompletedProcess[str]:
        return guest.run(self._lv, self.domain(server), argv, uid=uid)

    def gpus_inside(self, server: dict[str, Any]) -> set[int]:
        """Which cards, by their index in ``place.GPUS``, an ordinary user of the guest can open."""
        found = set()
        for gpu in range(len(place.GPUS)):
            said = self._open_inside(server, place.node(gpu), uid=image.USER_ID)
            if NO_DRIVER in said:
                found.add(gpu)
        return found

    def _open_inside(self, server: dict[str, Any], node: nodes.Node, uid: int) -> str:
        return self.run_inside(server, "/bin/sh", "-c", f": <{node.path}", uid=uid).stderr

    def assertGPUs(self, server: dict[str, Any], expected: Collection[int]) -> None:
        """Exactly these cards: nodes and device cgroup asked in the guest, Placement outside."""
        self.assertEqual(set(expected), self.gpus_inside(server))
        listed = self.run_inside(server, "/bin/sh", "-c", "ls /dev | grep nvidia").stdout.split()
        names = [place.node(gpu).name for gpu in expected]
        self.assertEqual(sorted([*names, *(place.SHARED if names else ())]), sorted(listed))
        domain = self.domain(server)
        for gpu in set(range(len(place.GPUS))) - set(expected):
            number = guest.open_from_cgroup(self._lv, domain, place.node(gpu))
            self.assertEqual(REFUSED, os.strerror(number), f"another's card {place.GPUS[gpu]}")
        self.assertEqual(len(expected), self._allocated(server))

    # Placement

    def gpu_provider(self) -> str:
        """Its uuid. :raises StopIteration: where the host has none"""
        named = (each for each in self._get_all_providers() if each["name"].endswith(PROVIDER))
        uuid: str = next(named)["uuid"]
        return uuid

    def usage(self) -> int:
        used: int = self._get_provider_usages(self.gpu_provider()).get("PGPU", 0)
        return used

    def reserved(self) -> int:
        inventory = self._get_provider_inventory(self.gpu_provider())
        reserved: int = inventory["PGPU"]["reserved"]
        return reserved

    def has_gpu_provider(self) -> bool:
        return any("_gpu_" in each["name"] for each in self._get_all_providers())

    def _allocated(self, server: dict[str, Any]) -> int:
        allocations = self._get_allocations_by_server_uuid(server["id"])
        return sum(each["resources"].get("PGPU", 0) for each in allocations.values())

    # The end

    def wait_for(self, what: str, holds: Callable[[], bool], timeout_s: float = 90) -> None:
        """Real guests on a busy machine take their time; what holds is seen soon all the same."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            self.assertLess(time.monotonic(), deadline, f"not within {timeout_s} s: {what}")
            time.sleep(0.2)

    def _delete_everything(self) -> None:
        for server in self.api.get_servers(detail=False):
            self.api.delete_server(server["id"])
        self.wait_for("no instance", lambda: not self.api.get_servers(detail=False))
        if self.has_gpu_provider():
            self.wait_for("no GPU used", lambda: not self.usage())

    def _expect_nothing_left(self, lv: libvirtd.PrivateLibvirtd, before: list[str]) -> None:
        """Registered first and so run last, when every service has ended."""

        def new() -> list[str]:
            return sorted(set(lv.leftovers()) - set(before))

        def expect() -> None:
            deadline = time.monotonic() + 15
            while new() and time.monotonic() < deadline:
                time.sleep(0.2)
            left = new()
            for domain in lv.domains():
                for verb in ("destroy", "undefine"):
                    subprocess.run(lv.enter(["virsh", "-qc", "lxc:///", verb, domain]))
            self.assertEqual([], left, "left behind by this test")

        self.addCleanup(expect)


def _api_paste() -> pathlib.Path:
    """Where Nova's wheel installed it; the test base looks for it below ``state_path``."""
    files = importlib.metadata.files("nova") or ()
    (found,) = (each for each in files if str(each).endswith("etc/nova/api-paste.ini"))
    return pathlib.Path(str(found.locate()))
