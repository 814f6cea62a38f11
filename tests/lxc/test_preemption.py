# SPDX-License-Identifier: Apache-2.0
"""Who asks for GPUs of a host full of preemptible guests, and what these guests see of it."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from types import SimpleNamespace
from typing import Any
from wsgiref import simple_server

import fixtures
from nova.api.metadata import handler

from lab.cloud import guest
from osc_gpu.fleet import create, preemption, preemption_candidates
from tests.functional import sdk
from tests.lxc import base, cloud, place

_SECRET = "of the agent and Nova"
_ADDRESS = "169.254.169.254"
_READ = ["/bin/wget", "-qO-", f"http://{_ADDRESS}/openstack/latest/meta_data.json"]


class _Handler(simple_server.WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Says nothing of each request."""


class BurstTest(base.LXCTestCase):
    def prepare_host(self) -> None:
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        self.flags(metadata_proxy_shared_secret=_SECRET, group="neutron")
        self.flags(service_metadata_proxy=True, group="neutron")
        self.flags(metadata_cache_expiration=0, group="api")
        # Who is stopped keeps its processor.
        self.flags(cpu_allocation_ratio=16.0)

    def test_each_is_served_and_each_victim_was_told(self) -> None:
        spot = self.flavor(**{"gpus": "= 1", "gpu:preemptible": "0s", "gpu:on_stop": "release"})
        spots = [self.boot(spot, project="spot") for _ in place.GPUS]
        nova = handler.MetadataRequestHandler()
        for each in spots:
            self._bring_metadata(nova, each)
        by_uuid = {each["id"]: each for each in spots}
        told: list[str] = []
        read: dict[str, str] = {}

        def tell(connection: Any, server: Any, *args: Any) -> None:
            told.append(server.id)
            real_tell(connection, server, *args)

        def end(connection: Any, chosen: preemption_candidates.Candidate, takers: str) -> None:
            uuid = chosen.server.id
            read[uuid] = self._metadata(by_uuid[uuid])["gpu:preempt_at"]
            real_end(connection, chosen, takers)

        real_tell, real_end = preemption_candidates.notify, preemption_candidates.end
        self.useFixture(fixtures.MockPatchObject(preemption_candidates, "notify", tell))
        self.useFixture(fixtures.MockPatchObject(preemption_candidates, "end", end))
        self._create_flavor(**self.FLAVOR, name="two", extra_spec={"gpus": "= 2"})
        served = self._ask(3, "--flavor", "two", "--image", cloud.IMAGE, "--every", "4")

        victims = [each for each in spots if self._is_stopped(each)]
        stay = [each for each in spots if each not in victims]
        self.assertEqual((6, 2), (len(victims), len(stay)))
        self.assertEqual(sorted(each["id"] for each in victims), sorted(told))
        self.assertEqual(set(told), read.keys())
        for each in victims:
            self.assertEqual(0, self.allocated(each))
        for each in stay:
            self.assertNotIn("gpu:preempt_at", self._metadata(each))
        given = [self.gpus_inside({"id": uuid}) for uuid in served]
        self.assertEqual([2, 2, 2], [len(each) for each in given])
        given += [self.gpus_inside(each) for each in stay]
        self.assertEqual(list(range(8)), sorted(gpu for each in given for gpu in each))
        self.assertEqual(8, self.usage())

    def _ask(self, count: int, *arguments: str) -> list[str]:
        """As that many users at once, while an operator has them served; the servers' uuids"""
        done = threading.Event()

        def sleep(seconds: float) -> None:
            if done.wait(seconds):
                raise KeyboardInterrupt

        def watch() -> None:
            words = "--project", "spot", "--apply", "--notice", "4", "--watch", "4"
            self.assertRaises(KeyboardInterrupt, sdk.run, self, preemption.Preempt, *words)

        def one(number: int) -> str:
            words = *arguments, "--for", "300", f"firm{number}"
            (_, values), _ = sdk.run(self, create.CreateServer, *words, admin=False)
            uuid, _, status = values
            self.assertEqual("ACTIVE", status)
            return str(uuid)

        clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
        self.useFixture(fixtures.MockPatchObject(preemption, "time", clock))
        with futures.ThreadPoolExecutor(count + 1) as pool:
            watching = pool.submit(watch)
            try:
                return list(pool.map(one, range(count)))
            finally:
                done.set()
                watching.result()

    def _is_stopped(self, server: dict[str, Any]) -> bool:
        return bool(self.api.get_server(server["id"])["status"] == "SHUTOFF")

    def _metadata(self, server: dict[str, Any]) -> dict[str, str]:
        """As the guest reads them"""
        answer = self.run_inside(server, *_READ)
        self.assertEqual("", answer.stderr)
        found: dict[str, str] = json.loads(answer.stdout).get("meta", {})
        return found

    def _bring_metadata(self, nova: Any, server: dict[str, Any]) -> None:
        """Has Nova's metadata service answer in the guest's network, as an agent of Neutron's
        does: it listens there, and says to Nova for whom it asks."""
        found = self.run_inside(server, "/bin/ip", "addr", "add", f"{_ADDRESS}/32", "dev", "lo")
        self.assertEqual((0, ""), (found.returncode, found.stderr))
        asks = {
            "HTTP_X_INSTANCE_ID": server["id"],
            "HTTP_X_TENANT_ID": "spot",
            "HTTP_X_INSTANCE_ID_SIGNATURE": hmac.new(
                _SECRET.encode(), server["id"].encode(), hashlib.sha256
            ).hexdigest(),
        }

        def application(environ: dict[str, Any], start_response: Any) -> Any:
            return nova({**environ, **asks}, start_response)

        pid = guest.init_pid(self._lv, self.domain(server))
        listening = _in_network_of(pid, lambda: socket.create_server((_ADDRESS, 80)))
        agent = simple_server.WSGIServer((_ADDRESS, 80), _Handler, bind_and_activate=False)
        agent.socket.close()
        agent.socket = listening
        agent.server_name, agent.server_port = _ADDRESS, 80
        agent.setup_environ()
        agent.set_app(application)
        thread = threading.Thread(target=agent.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(agent.server_close)
        self.addCleanup(agent.shutdown)


def _in_network_of(pid: int, make: Callable[[], socket.socket]) -> socket.socket:
    """What *make* makes in the network namespace of the process: a thread can be in another one
    than its process, and a socket is for ever of the one where it was made."""

    def there() -> socket.socket:
        guest.enter(pid, "net")
        return make()

    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(there).result()
