# SPDX-License-Identifier: Apache-2.0
"""More requests at once than one scheduler has time for, until every GPU is in use.

Nova's own API, scheduler, conductor and Placement, and this driver on each host over a generated
tree and Nova's stand-in for libvirt. Run by benchmarks.scheduling in a process of its own; prints
what was seen as JSON.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import logging
import os
import pkgutil
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator, Mapping
from typing import Any

import fixtures

from benchmarks import report
from tests.cloud import running

_MODULE = "benchmarks.burst"
_AT_ONCE = 8
_GPUS = 8
_SETTLED_S = 1800.0
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


def measure(hosts: int) -> Mapping[int, Any]:
    from tests.functional import base

    class Burst(base.GPUServersTestBase):
        CAST_AS_CALL = False
        found: Mapping[int, Any]

        def test(self) -> None:
            logging.disable(logging.WARNING)
            self.flags(instances=-1, cores=-1, ram=-1, group="quota")
            for number in range(hosts):
                self.start_host(f"host{number}")
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
            type(self).found = seen

        def _fill(self, gpus: int) -> float:
            """Seconds for each instance"""
            flavor = self.gpu_flavor(gpus)
            wanted = hosts * _GPUS // gpus
            requests = [
                {"server": self._build_server(flavor_id=flavor, networks="none")}
                for _ in range(wanted)
            ]
            started = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
                uuids = [each["id"] for each in pool.map(self.api.post_server, requests)]
            servers = self._settled(wanted)
            took = time.monotonic() - started
            states = collections.Counter(each["status"] for each in servers)
            self.assertEqual({"ACTIVE": wanted}, dict(states))
            self._expect_each_once(uuids, hosts * _GPUS)
            for uuid in uuids:
                self.api.delete_server(uuid)
            self._settled(0)
            return took / wanted

        def _settled(self, number: int) -> list[Any]:
            deadline = time.monotonic() + _SETTLED_S
            while True:
                found: list[Any] = self.api.get_servers()
                busy = any(each["status"] == "BUILD" for each in found)
                if len(found) == number and not busy:
                    return found
                self.assertLess(time.monotonic(), deadline, f"{len(found)} of {number} instances")
                time.sleep(2)

        def _expect_each_once(self, uuids: list[str], wanted: int) -> None:
            seen: collections.Counter[tuple[str, str]] = collections.Counter()
            for uuid in uuids:
                instance = self.instance({"id": uuid})
                seen.update((instance.host, each.identifier) for each in instance.resources)
            self.assertEqual(wanted, len(seen), "GPUs in use")
            self.assertEqual(1, max(seen.values()), "one GPU, several instances")

    result = unittest.TestResult()
    Burst("test").run(result)
    for _, text in (*result.errors, *result.failures):
        raise SystemExit(text[-3000:])
    return Burst.found


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
    print(json.dumps(measure(arguments.hosts)), file=stream, flush=True)
    # Nova's threads are of no use to anybody now.
    os._exit(0)


if __name__ == "__main__":
    main()
