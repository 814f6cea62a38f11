# SPDX-License-Identifier: Apache-2.0
"""API, scheduler, conductor, compute and Placement in this process, on a real libvirt."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pathlib
import shutil
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import os_vif
from nova.tests.functional import integrated_helpers
from nova.tests.functional.api import client

from nova_gpu.conf import CONF
from tests.cloud import fixtures as cloud_fixtures
from tests.cloud import leftovers, oracle, snapshot
from tests.fixtures import cells, shutdown

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"  # image1 of Nova's GlanceFixture


class Cloud(integrated_helpers._IntegratedTestBase):  # type: ignore[misc]
    """What its subclasses say: the folder for all state, and what a guest and its host are."""

    ADMIN_API = True
    microversion = "latest"
    CAST_AS_CALL = False  # as in a real cloud, and several instances at once

    # A flavor that a guest of the suite fits into, and how long such a guest may take.
    FLAVOR: ClassVar[Mapping[str, int]] = {}
    PATIENCE_S: ClassVar[float] = 90
    POLL_S: ClassVar[float] = 0.2

    # By the kind of a difference: why the test's very point is to leave it
    leaves: Mapping[str, str] = types.MappingProxyType({})

    _state: pathlib.Path
    _has_ended = False

    def setUp(self) -> None:
        """``_state`` must be there already."""
        self.useFixture(cloud_fixtures.RealHost())
        self.useFixture(cloud_fixtures.OneEventLoop())
        self.useFixture(cells.CellByContext())
        self.useFixture(shutdown.ManagerShutdown())
        super().setUp()
        self.addCleanup(self._end)

    # The services

    def _setup_services(self) -> None:
        # Before the first service says anything
        self.heard = self.useFixture(snapshot.Heard(self.notifier.fake_notifier))
        self.serve_images()
        self._set_flags()
        self.set_host_flags()
        os_vif.initialize()
        self.prepare_host()
        super()._setup_services()

    def serve_images(self) -> None:
        """What Glance has."""

    def set_host_flags(self) -> None:
        """Which libvirt, and how."""

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
            shutdown_timeout=10,
        )
        self.flags(enabled=False, group="vnc")
        enabled = [*CONF.filter_scheduler.enabled_filters, "GPUFilter"]
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "nova_gpu.scheduler.filters.GPUFilter",
            ],
            enabled_filters=enabled,
            group="filter_scheduler",
        )

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
        self.addCleanup(self._end)  # once more: this service is the first to end

    # Instances

    def flavor(self, **extra_specs: str) -> str:
        """A flavor that a guest of the suite fits into; its id."""
        return str(self._create_flavor(**self.FLAVOR, extra_spec=extra_specs))

    def boot(
        self, flavor: str, expected_state: str = "ACTIVE", image: str = IMAGE
    ) -> dict[str, Any]:
        server: dict[str, Any] = self._create_server(
            flavor_id=flavor, image_uuid=image, networks="none", expected_state=expected_state
        )
        return server

    def boot_with(self, gpus: int) -> dict[str, Any]:
        return self.boot(self.flavor(gpus=f"= {gpus}"))

    def delete(self, server: dict[str, Any]) -> None:
        self.api.delete_server(server["id"])
        self.wait_for(f"{server['id']} is gone", lambda: self._is_gone(server))

    def _is_gone(self, server: dict[str, Any]) -> bool:
        try:
            self.api.get_server(server["id"])
        except client.OpenStackApiNotFoundException:
            return True
        return False

    def servers(self, *, detail: bool = False) -> list[dict[str, Any]]:
        """The ids and names of all instances, whosever they are."""
        servers: list[dict[str, Any]] = self.api.get_servers(
            detail=detail, search_opts={"all_tenants": 1}
        )
        return servers

    def _wait_for_server_parameter(
        self, server: dict[str, Any], expected_params: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """What all of Nova's own helpers wait with, for five seconds at most."""
        answer: dict[str, Any] = {}

        def reached() -> bool:
            answer.update(self.api.get_server(server["id"]))
            if answer["status"] == "ERROR" != expected_params.get("status"):
                self.fail(f"{server['id']} is in ERROR: {answer.get('fault')}")
            faulty = expected_params.get("status") != "ERROR" or "fault" in answer
            return faulty and all(answer[key] == expected_params[key] for key in expected_params)

        self.wait_for(str(expected_params), reached)
        return answer

    def reboot(self, server: dict[str, Any], kind: str) -> None:
        """*kind* is ``SOFT`` or ``HARD``."""
        self.act(server, "reboot", "ACTIVE", type=kind)

    def act(self, server: dict[str, Any], action: str, status: str, **words: Any) -> None:
        """And waits until it is in that status."""
        self.api.post_server_action(server["id"], {action: words or None})
        self.wait_until(server, status)

    def wait_until(self, server: dict[str, Any], status: str) -> None:
        """In that status and with nothing going on."""
        expected = {"status": status, "OS-EXT-STS:task_state": None}
        self._wait_for_server_parameter(server, expected)

    def fault(self, server: dict[str, Any]) -> str:
        return str(self.api.get_server(server["id"])["fault"]["message"])

    def refusal(self, flavor: str) -> str:
        """The fault of an instance that no host takes"""
        return self.fault(self.boot(flavor, expected_state="ERROR"))

    def domain(self, server: dict[str, Any]) -> str:
        """libvirt's name of it"""
        return str(self.api.get_server(server["id"])["OS-EXT-SRV-ATTR:instance_name"])

    # Placement

    def has_gpu_provider(self) -> bool:
        return any("_gpu_" in provider["name"] for provider in self._get_all_providers())

    def gpu_provider(self, ending: str) -> str:
        """The uuid of that one. :raises StopIteration: where the host has none"""
        named = (
            provider for provider in self._get_all_providers() if provider["name"].endswith(ending)
        )
        return str(next(named)["uuid"])

    def used(self, provider: str) -> int:
        return int(self._get_provider_usages(provider).get("PGPU", 0))

    def allocated(self, server: dict[str, Any]) -> int:
        allocations = self._get_allocations_by_server_uuid(server["id"])
        return sum(allocation["resources"].get("PGPU", 0) for allocation in allocations.values())

    # The end

    def wait_for(
        self, what: str, holds: Callable[[], bool], timeout_s: float | None = None
    ) -> None:
        """Real guests on a busy machine take their time; what holds is seen soon all the same."""
        timeout_s = timeout_s or self.PATIENCE_S
        deadline = time.monotonic() + timeout_s
        start = time.monotonic()
        while not holds():
            now = time.monotonic()
            if now >= deadline:
                self.fail(f"not within {timeout_s} s: {what}{self.state_of_services()}")
            # Who asks must not take the processor from what is waited for.
            time.sleep(max(self.POLL_S, 2 * (now - start)))
            start = time.monotonic()

    def state_of_services(self) -> str:
        """Return what may explain that nothing happens, each line behind a line feed."""
        return ""

    def read_hosts(self) -> Iterator[snapshot.Host]:
        """What the oracle reads"""
        roots = self._host.roots
        for name, compute in self.computes.items():
            system = snapshot.System(roots.sysfs, roots.proc)
            left = (("quarantine", text) for text in leftovers.quarantined(self._state))
            yield snapshot.host(name, system, compute.manager, left)

    def differences(self) -> list[oracle.Difference]:
        """Return where the cloud contradicts itself a period after the last task has ended."""
        with contextlib.suppress(AssertionError):  # else it is a difference
            self.wait_for("no task", lambda: not self._has_tasks())
        self._run_periodics()
        return oracle.differences(None, oracle.read(self))

    def _has_tasks(self) -> bool:
        return any(server["OS-EXT-STS:task_state"] for server in self.servers(detail=True))

    def expect_agreement(self, leaves: Mapping[str, str] | None = None) -> None:
        """Expect no difference but those of the kinds that a test names, by default this one."""
        self.assertEqual([], self._unexpected(self.leaves if leaves is None else leaves))

    def _unexpected(self, leaves: Mapping[str, str]) -> list[str]:
        return sorted(
            str(difference) for difference in self.differences() if difference.kind not in leaves
        )

    def expect_nothing(self, leaves: Mapping[str, str] | None = None) -> None:
        """Expect the same of a cloud without instances, in which cards may still be cleaned."""
        own = self.leaves if leaves is None else leaves
        with contextlib.suppress(AssertionError):
            self.wait_for("nothing is left", lambda: not self._unexpected(own))
        self.expect_agreement(own)

    def _end(self) -> None:
        """Once all agree on what is there, and once there is nothing any more."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            self.expect_agreement()
        finally:
            self._delete_everything()
        self.expect_nothing()

    def _delete_everything(self) -> None:
        for server in self.servers():
            self.api.delete_server(server["id"])
        self.wait_for("no instance", lambda: not self.servers())


def _api_paste() -> pathlib.Path:
    """Where Nova's wheel installed it; the test base looks for it below ``state_path``."""
    files = importlib.metadata.files("nova") or ()
    (file,) = (file for file in files if str(file).endswith("etc/nova/api-paste.ini"))
    return pathlib.Path(str(file.locate()))
