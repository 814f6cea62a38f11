# SPDX-License-Identifier: Apache-2.0
"""A cloud in one process whose compute hosts have generated GPUs; they are LXC hosts here."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import fixtures
import testtools
from nova.tests.functional.api import client
from nova.virt.libvirt import driver as libvirt_driver

# Imported before any test changes the list of request filters: ours is put there once, on import.
import nova_gpu.scheduler.filters  # noqa: F401
from nova_gpu import notifications
from nova_gpu.conf import CONF
from tests.cloud import forks, snapshot
from tests.fixtures import cells, economy, hosts, libvirt, nodes, shutdown
from tests.functional import NOVA, leftovers, readings
from tests.functional.readings import Server

FIRST_SOCKET = ("0000:04:00.0", "0000:05:00.0", "0000:08:00.0", "0000:09:00.0")
SECOND_SOCKET = ("0000:84:00.0", "0000:85:00.0", "0000:88:00.0", "0000:89:00.0")
ALL = FIRST_SOCKET + SECOND_SOCKET
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"

# Of all that is waited for, in seconds
_PATIENCE_S = 120.0
# Where somebody is at work as long as the test wants
_LOOK_AGAIN_S = 0.5

BLUEPRINT = {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}


class GPUServersTestBase(leftovers.LeavesNothing, readings.ReadingTestBase):
    """Compute hosts are started with :meth:`start_host`, each over a generated tree of its own.

    ``hosts[name]`` is the :class:`tests.fixtures.hosts.Host` behind a compute host: what a test
    changes there the driver sees at its next look.
    """

    run_tests_with: ClassVar[type[testtools.RunTest]] = forks.RunTest
    WARM_UP: ClassVar[type]
    microversion = "latest"
    ADMIN_API = True
    ADDITIONAL_FILTERS: tuple[str, ...] = ("GPUFilter",)
    NODES = nodes.Nodes.FILES
    # Those that a test begins with
    HOSTS: tuple[str, ...] = ()
    # How many cards a host has whose machine is not named
    TOTAL = len(ALL)
    # Whether Nova compares what its API says with its schemas, which no host has a hand in.
    RESPONSE_VALIDATION = "ignore"

    def setUp(self) -> None:
        self.hosts: dict[str, hosts.Host] = {}
        self.down: set[str] = set()
        self.useFixture(cells.CellByContext())
        # A service reports for the first time 5 s after its start, on a context that its clean-up
        # uses too: in the midst of it the test fails with a transaction that is not its own.
        self.useFixture(
            fixtures.MonkeyPatch("nova.servicegroup.drivers.db.DbDriver.join", _never_report)
        )
        self.useFixture(shutdown.ManagerShutdown())
        super().setUp()
        self._setup_hypervisor()
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                _migrate_disk_and_power_off,
            )
        )
        # By `uptime`, in every period: this process is forked for it, and what it writes to from
        # then on is copied.
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.get_host_uptime", lambda driver: "up 1 day"
            )
        )
        # Those before 31 compare nothing. 31 has a schema that refuses its own answer to a rebuild:
        # properties without a value.
        if NOVA >= 31:
            validation = self.RESPONSE_VALIDATION if NOVA > 31 else "ignore"
            self.flags(response_validation=validation, group="api")
        self.flags(nvml=False, fatal_xids=[], group="gpu")
        self.flags(state_path=self.useFixture(fixtures.TempDir()).path)
        for name in self.HOSTS:
            self.start_host(name)

    def _setup_hypervisor(self) -> None:
        self.useFixture(libvirt.LXCFixture())
        self.flags(virt_type="lxc", group="libvirt")
        self.flags(uid_maps=["0:1000000:65536"], gid_maps=["0:1000000:65536"], group="libvirt")

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver="gpu.GPULibvirtDriver")

    def _setup_services(self) -> None:
        # No service reports; see setUp(). The others read this once, when they are started.
        self.flags(service_down_time=3600)
        super()._setup_services()

    def _setup_scheduler_service(self) -> Any:
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "nova_gpu.scheduler.filters.GPUFilter",
            ],
            group="filter_scheduler",
        )
        enabled = [*CONF.filter_scheduler.enabled_filters, *self.ADDITIONAL_FILTERS]
        self.flags(enabled_filters=enabled, group="filter_scheduler")
        return self.start_service("scheduler")

    # Hosts

    def start_host(self, name: str = "host1", machine: str = "fermi-8", **kwargs: Any) -> None:
        """*kwargs* are those of Nova's ``start_compute``."""
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.hosts[name] = hosts.build(machine, root, self.NODES)
        self.prepare(self.hosts[name])
        roots = self.hosts[name].roots
        self.nodes[name] = snapshot.System(roots.sysfs, roots.proc).nodes
        self._point_options_at(name)
        with self._state_of(name):
            self.start_compute(name, **kwargs)

    def prepare(self, host: hosts.Host) -> None:
        """What a host has beyond its machine, before its service is started"""

    def restart_host(self, name: str) -> None:
        """A new service with a new driver; libvirt and its domains stay."""
        self._point_options_at(name)
        with self._state_of(name):
            self.restart_compute_service(name)

    def _state_of(self, name: str) -> contextlib.AbstractContextManager[None]:
        """What a service keeps is its host's, by the path that it reads when it is made."""
        return self._option(state_path=str(self.state(name)))

    @contextlib.contextmanager
    def _option(self, **option: str) -> Iterator[None]:
        before = {name: CONF[name] for name in option}
        self.flags(**option)
        try:
            yield
        finally:
            self.flags(**before)

    def state(self, name: str = "host1") -> pathlib.Path:
        folder = self.hosts[name].root / "state"
        folder.mkdir(exist_ok=True)
        return folder

    def _point_options_at(self, name: str) -> None:
        """The options are the process's, but a driver reads them once, when it is made."""
        self.flags(group="gpu", **self.hosts[name].options())

    def period(self, name: str = "host1") -> None:
        """One run of the periodic task that updates the host's resources; and another one when what
        it began beside itself is over, if it did."""
        self.one_period(name)
        if self.computes[name].driver._gpus.vgpus.retries.wait():
            self.one_period(name)

    def periods(self, times: int = 1) -> None:
        """So many of each host"""
        for _ in range(times):
            for name in self.hosts:
                self.period(name)

    def one_period(self, name: str = "host1") -> None:
        with self.on(name):
            self.computes[name].manager.update_available_resource(self.context)

    def force_down(self, name: str) -> None:
        self.computes[name].stop()
        service = self.computes[name].service_ref.uuid
        self.admin_api.put_service_force_down(service, True)
        self.down.add(name)

    def bring_back(self, name: str) -> None:
        """The host comes back after :meth:`force_down`, its domains as they were."""
        service = self.computes[name].service_ref.uuid
        self.restart_host(name)
        self.admin_api.put_service_force_down(service, False)
        self.down.discard(name)

    def lose_power(self) -> None:
        """The guests of host1 end, and a service that starts is to start them again."""
        self.flags(resume_guests_state_on_host_boot=True)
        for domain in self._domains("host1"):
            domain.destroy()

    def on(self, name: str) -> contextlib.AbstractContextManager[None]:
        """CONF.host is the process's as well: the last host that was started."""
        return self._option(host=name)

    # Flavors and servers

    def flavor(self, name: str | None = None, /, **extra_specs: str) -> str:
        small = {"memory_mb": 128, "vcpu": 1, "disk": 1, "ephemeral": 0}
        return str(self._create_flavor(name=name, **small, extra_spec=extra_specs))

    def gpu_flavor(self, gpus: int) -> str:
        return self.flavor(gpus=f"= {gpus}")

    def image(self, **properties: Any) -> str:
        """One of the same content as the others, and with these properties too"""
        image = self.glance.show(None, IMAGE)
        del image["id"]
        image["properties"] |= properties
        return str(self.glance.create(None, image)["id"])

    def boot(self, flavor: str, **kwargs: Any) -> Server:
        server: Server = self._create_server(flavor_id=flavor, networks="none", **kwargs)
        return server

    def boot_several(
        self, flavor: str, count: int, expected_state: str = "ACTIVE", **kwargs: Any
    ) -> list[Server]:
        """By one request"""
        request = self._build_server(flavor_id=flavor, networks="none", **kwargs)
        request |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        reservation = self.api.post_server({"server": request})["reservation_id"]
        servers = self.api.get_servers(search_opts={"reservation_id": reservation})
        self.assertEqual(count, len(servers))
        return [self._wait_for_state_change(server, expected_state) for server in servers]

    def boot_refused(self, flavor: str, **kwargs: Any) -> str:
        """The fault of a server that must not come up"""
        server = self.boot(flavor, expected_state="ERROR", **kwargs)
        # It has the state a moment before the fault, and Nova's helper waits for both since 34.
        self._wait_for_assert(lambda: self.assertIn("fault", self._show_server(server)))
        return str(self._show_server(server)["fault"]["message"])

    def refused(self, action: dict[str, object], server: Server | None = None) -> list[str]:
        """What the instance's owner reads of it: a fault is shown of instances in ERROR only.

        :param server: by default the test's own
        """
        uuid = (server or self.server)["id"]
        # A cast is a call here, so that what the host raises reaches the API.
        with contextlib.suppress(client.OpenStackApiException):
            self.api.post_server_action(uuid, action)
        newest = self.api.get_instance_actions(uuid)[0]["request_id"]
        return self.failure(uuid, newest)

    def failure(self, uuid: str, request_id: str) -> list[str]:
        """What the instance's owner reads of an action as soon as that has failed"""
        url = f"/servers/{uuid}/os-instance-actions/{request_id}"

        def has_failed() -> None:
            self.assertEqual("Error", self.api.api_get(url).body["instanceAction"]["message"])

        self._wait_for_assert(has_failed)
        events = self.api.api_get(url).body["instanceAction"]["events"]
        return [event["details"] for event in events if event["details"]]

    def perform(self, server: Server, action: str, status: str, body: Any = None) -> None:
        """Have *action* done, to its end."""
        self.api.post_server_action(server["id"], {action: body})
        self._wait_until_settled(server, status)

    def assertAnswer(self, code: int, call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
        """The text of the API's answer of that code"""
        refused = self.assertRaises(client.OpenStackApiException, call, *args, **kwargs)
        self.assertEqual(code, refused.response.status_code)
        return str(refused)

    @contextlib.contextmanager
    def soft_deleted(self, server: Server) -> Iterator[None]:
        """*server* is deleted and can be restored as long as this lasts."""
        self.flags(reclaim_instance_interval=3600)
        self.api.delete_server(server["id"])
        self._wait_for_state_change(server, "SOFT_DELETED")
        yield
        self.flags(reclaim_instance_interval=0)

    def reclaim(self, server: Server) -> None:
        """As host1 does periodically with what was deleted long enough ago"""
        self.flags(reclaim_instance_interval=1)

        def is_gone() -> None:
            with self.on("host1"):
                self.computes["host1"].manager._reclaim_queued_deletes(self.context)
            self.assertRaises(
                client.OpenStackApiNotFoundException, self.api.get_server, server["id"]
            )

        self._wait_for_assert(is_gone)
        self.flags(reclaim_instance_interval=0)

    def sent(self) -> list[Any]:
        """The notifications about GPUs since the last call"""
        if (thread := notifications._outbox._thread) is not None:
            thread.join(_PATIENCE_S)
        gpu_notifications = [
            notification
            for notification in self.notifier.notifications
            if notification.event_type.startswith("gpu.")
        ]
        self.notifier.reset()
        return gpu_notifications

    def reap(self, host: str = "host1") -> None:
        """As a host does periodically with the domains of what was deleted while it was down"""
        self.flags(running_deleted_instance_timeout=0)
        with self.on(host):
            self.computes[host].manager._cleanup_running_deleted_instances(self.context)

    # Nova's own give up after five to twenty seconds, which are too few where a machine is busy.

    def _wait_for_server_parameter(
        self, server: Server, expected: Mapping[str, Any], max_retries: int = 0, **kwargs: Any
    ) -> Server:
        once = super()._wait_for_server_parameter
        answer: Server = self._wait_for_assert(lambda: once(server, expected, 1, **kwargs))
        return answer

    def _wait_until_settled(self, server: Server, status: str = "ACTIVE") -> Server:
        """Return *server* when it has that status and no task any more."""
        expected = {"status": status, "OS-EXT-STS:task_state": None}
        return self._wait_for_server_parameter(server, expected)

    def _wait_until_deleted(self, server: Server) -> None:
        once = super()._wait_until_deleted
        self._wait_for_assert(lambda: once(server))

    def _wait_for_assert(self, assert_func: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        """What *assert_func* returns when it raises no more. To look, as Nova does again and again,
        costs more than most of what is waited for; so whoever is at work is waited for first."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            economy.wait_for_quiet(_LOOK_AGAIN_S)
            try:
                return assert_func()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def confirm(self, server: Server, source: str) -> Server:
        """libvirt's driver compares CONF.host with the instance's host at the source."""
        with self.on(source):
            confirmed: Server = self._confirm_resize(server)
        return confirmed


class WarmUp(GPUServersTestBase):
    run_tests_with = testtools.RunTest

    def test(self) -> None:
        self.start_host()
        self.boot(self.gpu_flavor(1))


GPUServersTestBase.WARM_UP = WarmUp


def _never_report(*args: Any, **kwargs: Any) -> None:
    pass


def _migrate_disk_and_power_off(
    self: libvirt_driver.LibvirtDriver, context: Any, instance: Any, *args: Any, **kwargs: Any
) -> str:
    """Without disks to copy: the guest is stopped and stays defined at the source."""
    self.power_off(instance)
    return "[]"
