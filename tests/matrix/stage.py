# SPDX-License-Identifier: Apache-2.0
"""The instance that a walk is about, in a cloud of its own, and what is done to both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import futurist
import oslo_messaging
from nova.tests.functional.api import client
from oslo_messaging._drivers import impl_fake

from tests.fixtures import economy, threads
from tests.matrix import axes, outages
from tests.matrix.walks import Setup

_PATIENCE_S = 120.0
_LOOKS = 3
_LOOK_AGAIN_S = 0.01


class Unsettled(Exception):
    """Threads that go on and on"""


class Stage:
    """``server``: the instance that the next operation is for; the walk's own is the first.

    ``answer``: how the API took the last request: ``None`` where it was accepted, else the code.
    """

    def __init__(self, cloud: Any) -> None:
        self.cloud = cloud
        self.server: dict[str, Any] = {}
        self._servers: dict[int, dict[str, Any]] = {}
        self._slot = 0
        self.setup = Setup("", axes.PLAIN)
        self.answer: int | None = None
        self.image = ""
        self._pool = futurist.ThreadPoolExecutor(max_workers=4)
        self.api: client.TestOpenStackClient = cloud.api_fixture.api
        self.api.microversion = cloud.microversion
        self.admin_api: client.TestOpenStackClient = cloud.admin_api

    # Its begin

    def begin(self, setup: Setup) -> None:
        self.setup = setup
        for name in setup.conditions:
            axes.CONDITIONS[name].begin(self.cloud)
        properties = axes.IMAGES[setup.image].properties
        self.image = self.cloud.image(**properties)
        self.ask(lambda: self._boot(self.api, 1))
        self.wait()

    def flavor(self, count: int, name: str | None = None) -> str:
        """Return the id of another flavor of the setup's kind, with *count* GPUs."""
        words = axes.FLAVORS[name or self.setup.flavor].words(self.cloud, count)
        return str(self.cloud.flavor(**words))

    def _boot(self, api: client.TestOpenStackClient, count: int, **more: Any) -> dict[str, Any]:
        request = self.cloud._build_server(
            flavor_id=more.pop("flavor", None) or self.flavor(1),
            image_uuid=self.image,
            networks="none",
            **more,
        )
        request |= {"min_count": count, "max_count": count}
        made: dict[str, Any] = api.post_server({"server": request})
        if not self.server:
            self.server = self._servers[self._slot] = made
        return made

    def choose(self, slot: int) -> None:
        """Take the instance of *slot* for the next operation; a boot gives the slot one."""
        self._slot, self.server = slot, self._servers.get(slot, {})

    def statuses(self) -> dict[int, str]:
        """Return by slot the status of each instance that is there."""
        statuses = {}
        for slot in list(self._servers):
            self.choose(slot)
            if (status := self.status().partition(" ")[0]) != "gone":
                statuses[slot] = status
            else:
                del self._servers[slot]
        return statuses

    # What is done

    def ask(self, call: Callable[[], Any]) -> None:
        self.answer = None
        try:
            call()
        except client.OpenStackApiException as error:
            self.answer = error.response.status_code

    def act(self, action: dict[str, Any], *, admin: bool = False) -> None:
        api = self.admin_api if admin and not self.setup.is_member else self.api
        self.ask(lambda: api.post_server_action(self.server["id"], action))

    def boot_another(self, count: int = 1) -> None:
        self.ask(lambda: self._boot(self.api, count))

    def fill(self) -> None:
        """Another project takes all that is free, host by host."""
        api = self.cloud.other_project()
        for host in sorted(self.cloud.hosts.keys() - self.cloud.down):
            if free := self._free(host):
                flavor = self.cloud.flavor(**self.cloud.words(free))
                self._boot(api, 1, flavor=flavor, host=host)
                self.wait()
        self.answer = None

    def _free(self, host: str) -> int:
        count = 0
        url = f"/resource_providers?in_tree={self.cloud.compute_rp_uuids[host]}"
        wanted = self.cloud.words(1).get("vgpu_type", "").removeprefix("s== ")
        for provider in self.cloud.placement.get(url, version="1.14").body["resource_providers"]:
            has = self.cloud._get_provider_inventory(provider["uuid"])
            if self.cloud.CLASS in has and provider["name"].endswith(wanted):
                total, reserved, used = self.cloud.counts(provider["uuid"], self.cloud.CLASS)
                count += total - reserved - used
        return count

    # Hosts

    def host(self) -> str | None:
        """Return the host that has the instance, if one has."""
        try:
            server = self.admin_api.get_server(self.server["id"])
        except client.OpenStackApiNotFoundException:
            return None
        host: str | None = server["OS-EXT-SRV-ATTR:host"]
        return host

    def die(self, host: str) -> None:
        if host not in self.cloud.down:
            self.cloud.force_down(host)

    def return_hosts(self) -> None:
        for host in sorted(self.cloud.down):
            self._start(self.cloud.bring_back, host)

    def restart(self, host: str) -> None:
        self._start(self.cloud.restart_host, host)

    def _start(self, start: Callable[[str], None], host: str) -> None:
        """Start the host's service, and again if a lost call ends its start, as systemd does.

        Any other error is one of what is tested. The service stops each instance whose guest does
        not run.
        """
        by_host = self.cloud.computes, self.cloud.compute_rp_uuids
        entries = [known[host] for known in by_host]
        for last in (False, True):
            try:
                start(host)
                break
            except oslo_messaging.MessagingException:
                if last:
                    raise
            for known, own in zip(by_host, entries, strict=True):
                known[host] = own
        with self.cloud.on(host):
            self.cloud.computes[host].manager._sync_power_states(self.cloud.context)

    def lose_power(self, host: str) -> None:
        """Guests end, and the service that starts then starts them again."""
        self.cloud.flags(resume_guests_state_on_host_boot=True)
        for domain in self.cloud._domains(host):
            if domain.isActive():
                domain.destroy()
        kernels = getattr(self.cloud, "kernels", {})
        if host in kernels:
            kernels[host].forget_all()
        self.restart(host)

    def reclaim(self) -> None:
        self.cloud.flags(reclaim_instance_interval=1)
        time.sleep(1.1)
        for host in sorted(self.cloud.hosts.keys() - self.cloud.down):
            with self.cloud.on(host):
                self.cloud.computes[host].manager._reclaim_queued_deletes(self.cloud.context)

    def cloud_period(self) -> None:
        """Run what each host does from time to time."""
        for host in sorted(self.cloud.hosts.keys() - self.cloud.down):
            self.cloud.period(host)
            with self.cloud.on(host):
                manager = self.cloud.computes[host].manager
                manager._cleanup_running_deleted_instances(self.cloud.context)
                manager._cleanup_incomplete_migrations(self.cloud.context)

    # Its end

    def end(self) -> None:
        """Wait until hosts that were dead are back, and nothing goes on."""
        self.cloud.flags(running_deleted_instance_timeout=0)
        self.return_hosts()
        self.wait()

    def bury(self, calls: outages.Calls) -> None:
        """Start the services that have died anew, and give them what came for them meanwhile."""
        for host in sorted(calls.dead):
            if host in self.cloud.down:  # the operation has it dead anyway
                continue
            self.cloud.restart_host(host)
        dead, calls.dead = calls.dead, set()
        held, calls.held = calls.held, []
        for host, incoming in held:
            if host in dead:
                dispatcher = self.cloud.computes[host].rpcserver.dispatcher
                self._pool.submit(dispatcher.dispatch, incoming)
        self.wait()

    def is_refused(self) -> bool:
        """Return whether the last request was, by the API or by a host."""
        if self.answer is not None:
            return True
        try:
            actions = self.admin_api.get_instance_actions(self.server["id"])
        except client.OpenStackApiNotFoundException:
            return False
        last = next(action for action in actions if action["user_id"])  # a host's has none
        url = f"/servers/{self.server['id']}/os-instance-actions/{last['request_id']}"
        return bool(self.admin_api.api_get(url).body["instanceAction"]["message"] == "Error")

    def status(self) -> str:
        try:
            server = self.admin_api.get_server(self.server["id"])
        except (client.OpenStackApiNotFoundException, KeyError):
            return "gone"
        task = server["OS-EXT-STS:task_state"]
        return f"{server['status']}{f' {task}' if task else ''}"

    def recover(self) -> None:
        """Do what an operator does about an operation that failed."""
        state = self.status()
        if state == "gone":
            return
        status, _, task = state.partition(" ")
        self.answer = None
        if (status == "ERROR" and "delet" in task) or task in ("deleting", "soft-deleting"):
            self.ask(lambda: self.admin_api.delete_server(self.server["id"]))
            self.wait()
            return
        if status == "ERROR" or task:
            reset = {"os-resetState": {"state": "active"}}
            self.ask(lambda: self.admin_api.post_server_action(self.server["id"], reset))
            reboot = {"reboot": {"type": "HARD"}}
            self.ask(lambda: self.admin_api.post_server_action(self.server["id"], reboot))
            self.wait()

    def wait(self) -> None:
        """Wait until no thread has anything to do, and no message is on its way."""
        deadline = time.monotonic() + _PATIENCE_S
        looks = 0
        while looks < _LOOKS:
            busy = [*economy.busy(), *(["a message"] if _is_any_sent() else [])]
            looks = 0 if busy else looks + 1
            if busy and time.monotonic() > deadline:
                raise Unsettled(f"at work after {_PATIENCE_S:.0f} s: {', '.join(busy)}")
            time.sleep(_LOOK_AGAIN_S)


def _is_any_sent() -> bool:
    """Return whether a message waits for a service that listens."""
    listening = _listening()
    for exchange in list(impl_fake.FakeExchangeManager._exchanges.values()):
        queues = [*exchange._server_queues.items()]
        if any(messages and key in listening for key, messages in queues):
            return True
    return False


def _listening() -> set[tuple[str, str]]:
    """Return the topics and servers of those whose threads wait for messages."""
    targets = set()
    for thread in threading.enumerate():
        owner = threads.owner(thread)
        listener = getattr(owner, "_poll_style_listener", None)
        for target in getattr(listener, "_targets", ()):
            targets.add((target.topic, target.server))
    return targets
