# SPDX-License-Identifier: Apache-2.0
"""What a request for 8 of 8 GPUs costs in Placement, and in the request filter that asks before.

Run by benchmarks.scheduling in a process of its own, since Placement is in it with a database of
its own. Prints the milliseconds of each as JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

from nova import context
from nova.scheduler import utils
from nova.scheduler.client import report as nova_report

from benchmarks import host_states, placement, placement_cell, report
from nova_gpu.scheduler import placement as asked_of_placement
from nova_gpu.scheduler.request_filter import gpu_candidates_filter, gpu_request_filter

_MODULE = "benchmarks.asking"


def rows(hosts: int, runs: int) -> Iterator[report.Row]:
    """:raises subprocess.CalledProcessError: where some query has no answer"""
    command = [sys.executable, "-m", _MODULE, str(hosts), str(runs)]
    with tempfile.TemporaryDirectory(dir=placement.databases()) as folder:
        printed = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": folder}
        ).stdout
    ms = json.loads(printed)
    name = f"{hosts:,} hosts: 8 of 8 GPUs"
    yield report.Row(f"{name}, without traits", ms["whole"], ms["without traits"], "ms")
    ours, other = (placement.cell(shape, hosts, tuned=True) for shape in ("ours", "other"))
    yield report.Row(f"{name}, PCI in Placement (both tuned)", ours, other, "ms elapsed")
    name = f"{hosts:,} hosts: request filter"
    yield report.Row(f"{name}, its query and Nova's", ms["narrowed"], ms["whole"], "ms")
    yield report.Row(f"{name}, all of it and Nova's query", ms["filter"], ms["whole"], "ms")


class _Client:
    """Nova's client of Placement, of a Placement in this process."""

    def __init__(self, cloud: placement_cell.Cloud) -> None:
        self._cloud = cloud

    def get(self, url: str, version: str | None = None, **kwargs: Any) -> Any:
        body = self._cloud.answer("GET", url)
        return SimpleNamespace(status_code=200, json=lambda: body)

    def put(self, url: str, payload: Any, version: str | None = None, **kwargs: Any) -> Any:
        self._cloud.answer("PUT", url)
        return SimpleNamespace(status_code=201)


def _medians_ms(calls: Mapping[str, Callable[[], object]], runs: int) -> Mapping[str, float]:
    """Of processor time, all of it in this process; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs + 1):
        for name, call in calls.items():
            started = time.process_time()
            call()
            times[name].append((time.process_time() - started) * 1000)
    return {name: statistics.median(of[1:]) for name, of in times.items()}


def _query(specs: Mapping[str, str]) -> str:
    """What Nova asks for this flavor"""
    spec = host_states.spec()
    spec.flavor.extra_specs = dict(specs)
    text: str = utils.ResourceRequest.from_request_spec(spec).to_querystring()
    return text


def _measured(cloud: placement_cell.Cloud, runs: int) -> Mapping[str, float]:
    specs = host_states.spec().flavor.extra_specs
    whole = _query(specs)
    without = _query({key: said for key, said in specs.items() if not key.startswith("trait")})
    admin = context.get_admin_context()

    def ask(querystring: str) -> Callable[[], object]:
        def call() -> None:
            if not cloud.answer("GET", f"/allocation_candidates?{querystring}")[
                "allocation_requests"
            ]:
                raise RuntimeError(f"no candidate for {querystring}")

        return call

    def request_filters() -> None:
        spec = host_states.request_spec(host_states.WORDS)
        gpu_request_filter(admin, spec)
        gpu_candidates_filter(admin, spec)

    client = _Client(cloud)  # one for all requests, as of a scheduler
    with mock.patch.object(nova_report, "report_client_singleton", lambda: client):
        return _medians_ms(
            {
                "whole": ask(whole),
                "without traits": ask(without),
                "narrowed": ask(asked_of_placement.narrowed(whole)),
                "filter": request_filters,
            },
            runs,
        )


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("hosts", type=int)
    command.add_argument("runs", type=int)
    options = command.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        cloud = placement_cell.Cloud(pathlib.Path(folder), tuned=False)
        cloud.fill(options.hosts, placement_cell.providers("ours"))
        print(json.dumps(_measured(cloud, options.runs)))


if __name__ == "__main__":
    main()
