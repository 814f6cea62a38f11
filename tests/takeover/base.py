# SPDX-License-Identifier: Apache-2.0
"""Three hosts, each with either driver, and what a test asks of them and of their instances."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, ClassVar

from nova import context as nova_context
from nova import objects

from lab.vm import cards
from tests.cloud import base as cloud_base
from tests.cloud import databases, takeover
from tests.cloud.takeover import STOCK
from tests.vfio import base, benches
from tests.vfio.host import VFIO_DRIVERS

FIRST, SECOND, THIRD = HOSTS = benches.TRIO.hosts
ALIAS = "pci_passthrough:alias"
TYPE = "pci-small"
_NETWORK = {"vendor_id": "8086", "product_id": "10d3"}
# One for each function of a card, and one for what is no card
_ALIASES = (
    {"name": "gpu", "vendor_id": cards.VENDOR_ID, "product_id": cards.PRODUCT_ID},
    {"name": "sound", "vendor_id": "8086", "product_id": "2668"},
    {"name": "network", **_NETWORK},
)
# nova-compute's log of a soft reboot that has not become a hard one
_SOFTLY = "Instance soft rebooted successfully"
_ON_THE_WAY = ("resize_migrating", "resize_migrated", "resize_finish")
_PERIODS = 3


class TakeoverTestCase(takeover.Typing, base.VFIOTestCase):
    """A cloud of stock Nova.

    ``specs`` are the functions in ``[pci]device_spec`` of each host, ``divided`` the hosts with
    ``[devices]enabled_mdev_types``; ``drivers`` are the hosts' now. ``servers`` are the instances
    by their names here, and ``places`` their hosts.
    """

    REPORTED: ClassVar[bool] = False

    def setUp(self) -> None:
        super().setUp()
        self.host_states = self.cloud.host_states
        self.drivers = dict.fromkeys(HOSTS, STOCK)
        self.specs: dict[str, Sequence[str]] = {}
        self.divided: set[str] = set()
        self.servers: dict[str, dict[str, Any]] = {}
        self.places: dict[str, str] = {}
        self.addCleanup(self._be_ours)
        self.cloud.flags(allow_resize_to_same_host=True, shelved_offload_time=0)
        self.cloud.flags(pci_in_placement=self.REPORTED, group="filter_scheduler")
        self.cloud.flags(alias=[json.dumps(alias) for alias in _ALIASES], group="pci")

    # Hosts

    def together(
        self, work: Callable[[str], object], hosts: Sequence[str] = HOSTS
    ) -> dict[str, Any]:
        """Do *work* for each host, all at once; return the results, by host."""
        with futures.ThreadPoolExecutor(len(hosts)) as pool:
            return dict(zip(hosts, pool.map(work, hosts), strict=True))

    def begin(self) -> None:
        """Become a cloud in which nova-gpu never was."""
        self.together(self.cloud.kill_compute)
        self.be_stock_only()
        self.together(self.start)

    def start(self, host: str) -> None:
        """Start nova-compute, with the options of the host's driver, and let it mend things."""
        self._choose(host)
        self.cloud.start_compute(host)
        for _ in range(_PERIODS):
            self.cloud.ask("period", host=host)

    def _choose(self, host: str) -> None:
        """Choose the options of the host's driver, for what is started from now on."""
        is_stock = self.drivers[host] == STOCK
        functions = (*(self.specs[host] if is_stock else ()), cards.NETWORK)
        types = [TYPE] if is_stock and host in self.divided else []
        self.cloud.further = {
            **self.cloud.further,
            host: [
                *("[DEFAULT]", f"compute_driver = {self.drivers[host]}", "report_interval = 2"),
                *("allow_resize_to_same_host = true", "shelved_offload_time = 0"),
                # Guests do nothing, and write nothing.
                *("cpu_allocation_ratio = 16", "disk_allocation_ratio = 4"),
                *("[pci]", f"report_in_placement = {self.REPORTED}"),
                *(f"device_spec = {json.dumps({'address': function})}" for function in functions),
                *("[devices]", *(f"enabled_mdev_types = {type_id}" for type_id in types)),
                *("[gpu]", "vgpu_types = *"),
            ],
        }

    def _be_ours(self) -> None:
        """Be for the next test what this one has found."""
        self.cloud._delete_everything()
        self.together(self.cloud.kill_compute)
        for provider in reversed(self.cloud._get_all_providers()):
            if provider["parent_provider_uuid"]:
                self.cloud.placement.delete(f"/resource_providers/{provider['uuid']}")
        for host_state in self.host_states.values():
            host_state.remove_mediated()
        self.cloud.flags(pci_in_placement=False, group="filter_scheduler")
        self.cloud.flags(alias=[], group="pci")
        self.cloud.further = {}
        self.together(self.cloud.start_compute)
        self.together(lambda host: self._set_service(host, status="enabled", forced_down=False))
        self.cloud._run_periodics()

    def stop(self, host: str) -> None:
        self.cloud.kill_compute(host)

    def command(self, host: str, *arguments: str) -> tuple[int, str]:
        self._choose(host)
        status, output = self.cloud.command(*arguments, host=host)
        return status, output

    def guests(self, host: str) -> Any:
        return self.host_states[host].guests()

    @contextlib.contextmanager
    def only(self, host: str) -> Iterator[None]:
        """While this lasts, the scheduler has this host alone."""
        others = [other for other in HOSTS if other != host]
        for other in others:
            self._set_service(other, status="disabled")
        try:
            yield
        finally:
            for other in others:
                self._set_service(other, status="enabled")

    def _set_service(self, host: str, **words: Any) -> None:
        (service,) = self.cloud.admin_api.get_services(host=host, binary="nova-compute")
        self.cloud.admin_api.put_service(service["id"], words)

    # Instances

    def boot_at(self, host: str, flavors: Mapping[str, Mapping[str, str]]) -> None:
        """Boot instances with these names and flavors' properties, which run then."""
        for name, words in flavors.items():
            self.servers[name] = self.cloud._create_server(
                name=name,
                flavor_id=self.cloud.flavor(**words),
                # Without one, Nova's helper changes the version of the API for a moment.
                image_uuid=cloud_base.IMAGE,
                networks="none",
                host=host,
                api=self.cloud.admin_api,
            )
            self.places[name] = host
            self.seen(name)

    def seen(self, name: str) -> list[tuple[str, str]]:
        """Return (product, class) of each display and audio device that the guest sees."""
        return sorted(self.seen_in(self.servers[name], self.places[name]).values())

    def perform(self, action: str, status: str, *names: str, **words: Any) -> None:
        """Ask for an action on instances, all at once, and wait until they have the status."""
        for name in names:
            self._post(name, action, words or None)
        for name in names:
            self.cloud.wait_until(self.servers[name], status)

    def _post(self, name: str, action: str, words: Any) -> None:
        self.cloud.admin_api.post_server_action(self.servers[name]["id"], {action: words})

    def reboot_softly(self, *names: str) -> None:
        """Reboot instances, whose guests shut down when they are asked to."""
        hosts = [self.places[name] for name in names]
        before = [self.cloud.compute_log(host).count(_SOFTLY) for host in HOSTS]
        for name, host in zip(names, hosts, strict=True):
            domain = self.cloud.domain(self.servers[name])
            self.cloud.hosts[host].answer_power_button(domain)
        self.perform("reboot", "ACTIVE", *names, type="SOFT")
        after = [self.cloud.compute_log(host).count(_SOFTLY) for host in HOSTS]
        self.assertEqual(len(names), sum(after) - sum(before))

    def resize(self, flavors: Mapping[str, Mapping[str, str]]) -> None:
        """Resize instances to flavors with these properties, on their own hosts."""
        for name, words in flavors.items():
            with self.only(self.places[name]):
                self._post(name, "resize", {"flavorRef": self.cloud.flavor(**words)})
                self.cloud.wait_for(f"{name} is resized", lambda n=name: self._is_on_the_way(n))
        for name in flavors:
            self.cloud.wait_until(self.servers[name], "VERIFY_RESIZE")

    def _is_on_the_way(self, name: str) -> bool:
        server = self.cloud.api.get_server(self.servers[name]["id"])
        self.assertNotEqual("ERROR", server["status"], server.get("fault"))
        action = self.cloud.api.get_instance_actions(server["id"])[0]
        self.assertIsNone(action["message"], self._details(server["id"], action["request_id"]))
        return server["OS-EXT-STS:task_state"] in _ON_THE_WAY or server["status"] == "VERIFY_RESIZE"

    def _details(self, uuid: str, request: str) -> list[str]:
        """Return what an administrator is told of an action."""
        url = f"/servers/{uuid}/os-instance-actions/{request}"
        events = self.cloud.admin_api.api_get(url).body["instanceAction"]["events"]
        return [f"{uuid}, {event['event']}: {event['traceback']}" for event in events]

    def shelve(self, *names: str) -> None:
        """Shelve instances, and let each return to its host."""
        self.perform("shelve", "SHELVED_OFFLOADED", *names)
        self.periods()
        for name in names:
            self._post(name, "unshelve", {"host": self.places[name]})
        for name in names:
            self.cloud.wait_until(self.servers[name], "ACTIVE")
            self.seen(name)  # what it says until it is up is no change that somebody has made

    def evacuate(self, name: str, target: str) -> None:
        """Let the host of an instance die, evacuate the instance, and bring the host back."""
        source, self.places[name] = self.places[name], target
        self.cloud.kill_compute(source)
        self._set_service(source, forced_down=True)
        self.cloud.hosts[source].kill_guest(self.cloud.domain(self.servers[name]))
        self._post(name, "evacuate", {"host": target})
        self.cloud.wait_for(f"{name} is evacuated", lambda: self._is_at(name, target))
        self.start(source)
        self._set_service(source, forced_down=False)
        self.perform("os-start", "ACTIVE", name)
        self.seen(name)
        self.periods()

    def _is_at(self, name: str, host: str) -> bool:
        server = self.cloud.admin_api.get_server(self.servers[name]["id"])
        self.assertNotEqual("ERROR", server["status"], server.get("fault"))
        migrations = self.cloud.admin_api.api_get("/os-migrations").body["migrations"]
        newest = max(
            (migration for migration in migrations if migration["instance_uuid"] == server["id"]),
            key=lambda migration: int(migration["id"]),
            default={"status": ""},
        )
        words = (server["OS-EXT-SRV-ATTR:host"], server["status"], server["OS-EXT-STS:task_state"])
        return words == (host, "SHUTOFF", None) and newest["status"] in ("done", "completed")

    def remove(self, name: str) -> None:
        """Delete an instance, and wait until its devices are free."""
        self.cloud.delete(self.servers.pop(name))
        del self.places[name]
        self.periods()

    def periods(self) -> None:
        for _ in range(_PERIODS):
            self.cloud._run_periodics()

    # What is where

    def dump(self) -> databases.Dump:
        """Return all that the cloud and its hosts keep."""
        states = self.together(lambda host: self.host_states[host].kept())
        hosts = (
            (f"{host}:{place}", value)
            for host, values in states.items()
            for place, value in values.items()
        )
        return databases.dump(self.cloud, hosts)

    def has(self, name: str) -> list[str]:
        """Return the functions and the mediated devices that the guest has."""
        server, host = self.servers[name], self.places[name]
        return [*self.hostdevs(server, host), *self.named(server, host)]

    def rows(self, name: str) -> list[str]:
        """Return the functions that Nova's tracker counts for the instance on its host."""
        context = nova_context.get_admin_context()
        nodes = objects.ComputeNodeList.get_all_by_host(context, self.places[name])
        rows = objects.PciDeviceList.get_by_instance_uuid(context, self.servers[name]["id"])
        own = {node.id for node in nodes}
        return sorted(row.address for row in rows if row.compute_node_id in own)

    def recorded(self, name: str) -> list[str]:
        """Return the identifiers of the instance's resources, which are nova-gpu's."""
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(
            context, self.servers[name]["id"], expected_attrs=["resources"]
        )
        return [resource.identifier for resource in instance.resources or ()]

    def shown(self) -> dict[str, Any]:
        """Return what owners see of their instances, and of what was done to them."""
        views = {}
        for name, server in self.servers.items():
            seen = self.cloud.api.get_server(server["id"])
            del seen["updated"]
            views[name] = (seen, self.cloud.api.get_instance_actions(server["id"]))
        return views

    def assertAlone(self) -> None:
        """Check that no device is in two guests."""
        held = [(self.places[name], device) for name in self.servers for device in self.has(name)]
        self.assertEqual(sorted(set(held)), sorted(held))

    def bind_at_boot(self, host: str) -> None:
        """Bind both cards of a host to vfio-pci, as one that boots so, until the test ends."""
        remote = self.cloud.hosts[host]
        for card in cards.WHOLE:
            for function in remote.functions(card):
                remote.bind(function, "vfio-pci")
                self.addCleanup(remote.bind, function, "")
        self.addCleanup(self.cloud._delete_everything)

    def assertBound(self, host: str) -> None:
        """Check that vfio-pci has both cards of a host."""
        remote = self.cloud.hosts[host]
        self.assertEqual([VFIO_DRIVERS] * 2, [remote.drivers(card) for card in cards.WHOLE])
