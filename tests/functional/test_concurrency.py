# SPDX-License-Identifier: Apache-2.0
"""Many at once create and delete instances; all agree on the GPUs after each round.

On native threads with Nova 2026.2, on eventlet with those before it. How many operations it are is
in the environment, and so is the seed; ``python -m tests.crash --operations 10000`` is the long
run.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.functional import NOVA, base

OPERATIONS = "NOVA_GPU_OPERATIONS"
SEED = "NOVA_GPU_SEED"
_AT_ONCE = 8
_ROUND = 24
_SETTLED_S = 200.0


class ConcurrencyTest(base.GPUServersTestBase):
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        self.start_host()
        self._flavors = {gpus: self.gpu_flavor(gpus) for gpus in (1, 2, 4)}

    def test_create_and_delete(self) -> None:
        patcher = sys.modules.get("eventlet.patcher")
        is_patched = patcher is not None and patcher.is_monkey_patched("thread")
        self.assertEqual(NOVA < 34, is_patched)
        chance = random.Random(int(os.environ.get(SEED, "0")))
        started = time.monotonic()
        done, active = 0, 0
        wanted = int(os.environ.get(OPERATIONS, "24"))
        while done < wanted:
            self._round(chance)
            done += _ROUND
            active += sum(server["status"] == "ACTIVE" for server in self.api.get_servers())
            self.assertEqual([], self.differences(), f"after {done} operations")
            _report(done, wanted, active, time.monotonic() - started)
        self.assertGreater(active, 0, "else this shows nothing")
        self._delete_all()
        self.assertEqual([], self.differences())
        self.assertInventory(used=0)

    def _round(self, chance: random.Random) -> None:
        """Those that are there are deleted, and as many are asked for; nobody waits for anybody."""
        servers = [server["id"] for server in self.api.get_servers(detail=False)]
        work: list[tuple[Callable[[Any], None], Any]] = [
            (self.api.delete_server, uuid) for uuid in chance.sample(servers, min(len(servers), 12))
        ]
        # Nova's helper that builds a request is not made for threads.
        requests = [self._request(chance.choice((1, 1, 2, 4))) for _ in range(_ROUND - len(work))]
        work += [(self.api.post_server, request) for request in requests]
        chance.shuffle(work)
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda task: task[0](task[1]), work))
        self._settle()
        # What was refused would only be in the way.
        for server in self.api.get_servers():
            if server["status"] == "ERROR":
                self.api.delete_server(server["id"])
        self._settle()

    def _request(self, gpus: int) -> dict[str, Any]:
        return {"server": self._build_server(flavor_id=self._flavors[gpus], networks="none")}

    def _delete_all(self) -> None:
        for server in self.api.get_servers(detail=False):
            self.api.delete_server(server["id"])
        self._settle()

    def _settle(self) -> None:
        """Until no instance is being built or deleted."""
        deadline = time.monotonic() + _SETTLED_S
        start = time.monotonic()
        while busy := [server for server in self.api.get_servers() if _is_busy(server)]:
            now = time.monotonic()
            self.assertLess(now, deadline, [_words(server) for server in busy])
            # An answer with all of them takes the processor from what is waited for.
            time.sleep(max(0.5, 2 * (now - start)))
            start = time.monotonic()


def _report(done: int, wanted: int, active: int, seconds: float) -> None:
    """Of the long run, whose log somebody reads"""
    if OPERATIONS in os.environ:
        left_s = seconds / done * max(0, wanted - done)
        print(
            f"{done} of {wanted} operations, {done // _ROUND} times all agreed; {active} "
            f"instances became ACTIVE; {done / seconds:.2f} operations a second, about "
            f"{left_s / 60:.0f} min to go",
            file=sys.stderr,
            flush=True,
        )


def _is_busy(server: base.Server) -> bool:
    return server["status"] == "BUILD" or server["OS-EXT-STS:task_state"] is not None


def _words(server: base.Server) -> str:
    return f"{server['id']} {server['status']} {server['OS-EXT-STS:task_state']}"
