# SPDX-License-Identifier: Apache-2.0
"""More at once than one scheduler has time for, until every GPU is in use: in each request as many
instances as a host has room for, eight requests at once.

Nova's own API, scheduler, conductor and Placement, and this driver on each host over a generated
tree and Nova's stand-in for libvirt. Run by benchmarks.scheduling in a process of its own; prints
what was seen as JSON.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import gc
import json
import logging
import pkgutil
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TextIO

import fixtures

from benchmarks import report
from tests.cloud import running

_MODULE = "benchmarks.burst"
_AT_ONCE = 8
_GPUS = 8
_SETTLED_S = 3600.0
# A hundred services in one process: what each does while it waits must not take all of the time.
# Their bus looks for messages 20 times a second; who waits for the interpreter asks 200 times, and
# all that is in memory is looked through for garbage again and again.
_LOOK_FOR_MESSAGES_S = 0.5
_SWITCH_INTERVAL_S = 0.1
_GARBAGE_AFTER = 100_000
# What the scheduler claims in Placement with, and where an instance comes back to that a host
# could not start: the first time it is another function.
_CLAIM = "nova.scheduler.utils.claim_resources"
_RESCHEDULE = "nova.conductor.manager.ComputeTaskManager.build_instances"


def rows(hosts: int) -> Iterator[report.Row]:
    """:raises subprocess.CalledProcessError: where not every GPU is in use, or one twice"""
    printed = subprocess.run(
        [sys.executable, "-m", _MODULE, str(hosts)], check=True, stdout=subprocess.PIPE
    ).stdout
    for gpus, seen in json.loads(printed.splitlines()[-1]).items():
        name = f"{hosts} hosts, {hosts * _GPUS // int(gpus)} instances of {gpus} GPU"
        yield report.Row(f"{name}: each", seen["seconds_each"], None, "s elapsed")
        yield report.Row(f"{name}: claims lost in Placement", seen["lost"], None, "")
        yield report.Row(f"{name}: reschedules", seen["reschedules"], None, "")


def measure(hosts: int, stream: TextIO) -> NoReturn:
    """Prints what was seen to *stream*, and ends the process.

    :raises SystemExit: where there was no cloud to look at
    """
    import testtools

    from nova_gpu.conf import CONF
    from tests.functional import scheduling

    class Burst(scheduling.SchedulingTestBase):
        run_tests_with = testtools.RunTest  # in this process
        CAST_AS_CALL = False

        def _setup_conductor_service(self) -> Any:
            # As many schedulers as a real cloud may have. The 64 of one service would all choose
            # the same host at a time, and wait for each other at SQLite's one writer.
            from oslo_messaging import server

            CONF.register_opts(server._pool_opts)  # not before the first server is made
            self.flags(executor_thread_pool_size=_AT_ONCE)
            return super()._setup_conductor_service()

        def test(self) -> None:
            # The services' idle threads would be waited for, which are of no use to anybody now.
            running.leave(self._tell)

        def _tell(self) -> int:
            print(json.dumps(self._burst()), file=stream, flush=True)
            return 0

        def _burst(self) -> Mapping[int, Any]:
            logging.disable(logging.WARNING)
            self.flags(instances=-1, cores=-1, ram=-1, group="quota")
            self.useFixture(
                fixtures.MockPatch("oslo_messaging._drivers.impl_fake.time", _Patient())
            )
            for number in range(hosts):
                self.start_host(f"host{number}")
            gc.freeze()
            claims: list[bool] = []
            returned: list[None] = []
            self.useFixture(_counting(_CLAIM, claims))
            self.useFixture(_counting(_RESCHEDULE, returned))
            seen: dict[int, Any] = {}
            for gpus in (1, _GPUS):
                claims.clear()
                returned.clear()
                seconds = self._fill(gpus)
                seen[gpus] = {
                    "seconds_each": seconds,
                    "lost": claims.count(False),
                    "reschedules": len(returned),
                }
            return seen

        def _fill(self, gpus: int) -> float:
            """Seconds for each instance"""
            flavor = self.gpu_flavor(gpus)
            wanted = hosts * _GPUS // gpus
            # A host's worth in each request, as a user asks for several.
            several = self._build_server(flavor_id=flavor, networks="none")
            several |= {"min_count": _GPUS // gpus, "max_count": _GPUS // gpus}
            started = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(self.api.post_server, [{"server": several}] * hosts))
            self._settled(wanted)
            took = time.monotonic() - started
            uuids = [server["id"] for server in self._servers_in(status="ACTIVE")]
            self.assertEqual(wanted, len(uuids))
            self._expect_each_once(uuids, hosts * _GPUS)
            for uuid in uuids:
                self.api.delete_server(uuid)
            self._settled(0)
            return took / wanted

        def _settled(self, number: int) -> None:
            """So many guests, and nothing under way. The API is asked seldom: an answer about
            hundreds of instances takes it seconds, in which nothing else goes on."""
            deadline = time.monotonic() + _SETTLED_S
            looks = 0
            while (guests := sum(len(self._domains(name)) for name in self.computes)) != number:
                self.assertLess(time.monotonic(), deadline, f"{guests} guests instead of {number}")
                print(f"{guests} guests", file=sys.stderr, flush=True)
                looks += 1
                if looks % 12 == 0:
                    self.assertEqual([], self._servers_in(status="ERROR"))
                time.sleep(5)
            while self._servers_in(status="BUILD") if number else self._servers_in():
                self.assertLess(time.monotonic(), deadline, "not all of them are settled")
                time.sleep(5)

        def _servers_in(self, **wanted: str) -> list[Any]:
            """Their names only"""
            servers: list[Any] = self.api.get_servers(detail=False, search_opts=wanted)
            return servers

        def _expect_each_once(self, uuids: list[str], wanted: int) -> None:
            seen: collections.Counter[tuple[str, str]] = collections.Counter()
            for uuid in uuids:
                instance = self.instance({"id": uuid})
                seen.update((instance.host, resource.identifier) for resource in instance.resources)
            self.assertEqual(wanted, len(seen), "GPUs in use")
            self.assertEqual(1, max(seen.values()), "one GPU, several instances")

    result = unittest.TestResult()
    Burst("test").run(result)
    raise SystemExit("\n".join(text[-3000:] for _, text in result.errors + result.failures))


class _Patient:
    """The time, for the bus"""

    time = staticmethod(time.time)

    @staticmethod
    def sleep(seconds: float) -> None:
        time.sleep(max(seconds, _LOOK_FOR_MESSAGES_S))


def _counting(path: str, seen: list[Any]) -> fixtures.MockPatch:
    """Puts what each call of Nova's function at *path* returns into *seen*."""
    original = pkgutil.resolve_name(path)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(result)
        return result

    return fixtures.MockPatch(path, wrapped)


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("hosts", type=int)
    arguments = command.parse_args()
    stream = running.begin()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(_GARBAGE_AFTER)
    measure(arguments.hosts, stream)


if __name__ == "__main__":
    main()
