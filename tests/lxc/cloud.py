# SPDX-License-Identifier: Apache-2.0
"""The cloud of every test: API, scheduler, conductor, compute and Placement in this process."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import fixtures
import os_vif
from nova.tests.functional import integrated_helpers

from nova_gpu.conf import CONF
from tests.fixtures import cells
from tests.lxc import fixtures as lxc_fixtures
from tests.lxc import place
from tools.novalab import libvirtd

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"  # image1 of Nova's GlanceFixture
ID_MAPS = ["0:100000:65536"]


class Cloud(integrated_helpers._IntegratedTestBase):  # type: ignore[misc]
    ADMIN_API = True
    microversion = "latest"
    CAST_AS_CALL = False  # as in a real cloud, and several instances at once

    # What a test class may say of its host
    UID_MAPS: Sequence[str] = ID_MAPS

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
        self.useFixture(cells.CellByContext())
        super().setUp()
        self.addCleanup(self._delete_everything)

    # The services

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
            compute_driver="gpu.GPULibvirtDriver",
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
