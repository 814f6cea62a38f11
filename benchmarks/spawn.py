# SPDX-License-Identifier: Apache-2.0
"""The spawn of a container on a real libvirt: with GPUs by our driver, without by Nova's own.

python -m benchmarks.spawn [--json] [--runs N]      as root; it starts a libvirtd of its own
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import unittest
from typing import Any

from benchmarks import report, timing
from tests.cloud import running
from tests.lxc import outside, place

GPUS = 2
_OURS, _STOCK = "gpu.GPULibvirtDriver", "libvirt.LibvirtDriver"

NOTES = (
    "Spawn: the median time that driver.spawn takes in nova-compute, the two drivers in turn, in",
    f"one process, for the same flavor but for its {GPUS} GPUs. Without user id maps, since Nova's",
    "driver starts no container with them; the row with maps is ours alone, as it is meant to run.",
    "Memory: resident, of a fresh process that has what nova-compute imports and a driver that has",
    "connected to libvirt and reported the host's resources.",
)

_MEMORY = """
import gc, importlib, json, os, sys
import nova.cmd.compute, nova.compute.manager
from nova import objects
from nova.conf import CONF
from nova.virt import driver, fake
objects.register_all()
importlib.import_module("nova.virt." + sys.argv[1].rpartition(".")[0])
CONF([], project="nova", default_config_files=[])
for group, name, value in json.loads(sys.argv[2]):
    CONF.set_override(name, value, group)
loaded = driver.load_compute_driver(fake.FakeVirtAPI(), sys.argv[1])
loaded.init_host("compute")
loaded.get_available_resource(loaded.get_available_nodes()[0])
gc.collect()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmRSS"].split()[0]))
sys.stdout.flush()
os._exit(0)
"""


def spawn_rows(runs: int) -> list[report.Row]:
    """:raises SystemExit: where an instance did not start, since no figure would say anything"""
    from tests.lxc import base

    class Spawns(base.LXCTestCase):
        UID_MAPS = ()
        table: list[report.Row]

        def prepare_host(self) -> None:
            self.flags(allow_privileged_containers=True, group="gpu")
            self.flags(uid_maps=[], gid_maps=[], group="libvirt")

        def test(self) -> None:
            compute = self.computes["compute"].manager
            ours, stock = compute.driver, _stock(compute)
            self.addCleanup(stock.cleanup_host, compute.host)
            with_gpus, without = self.flavor(gpus=str(GPUS)), self.flavor()
            times: dict[str, list[float]] = {_OURS: [], _STOCK: []}
            for _ in range(runs + 1):
                for name, driver, flavor in (
                    (_OURS, ours, with_gpus),
                    (_STOCK, stock, without),
                ):
                    compute.driver = driver
                    times[name].append(self._spawn(driver, flavor))
            compute.driver = ours
            row = (timing.median_s(times[_OURS]), timing.median_s(times[_STOCK]))
            type(self).table = [report.Row(f"spawn with {GPUS} GPUs", *row, "s")]
            self.flags(uid_maps=base.ID_MAPS, gid_maps=base.ID_MAPS, group="libvirt")
            mapped = [self._spawn(ours, with_gpus) for _ in range(runs + 1)]
            name = f"spawn with {GPUS} GPUs, user id maps"
            type(self).table.append(report.Row(name, timing.median_s(mapped), None, "s"))

        def _spawn(self, driver: Any, flavor: str) -> float:
            """Seconds"""
            with timing.spawning(driver) as seconds:
                server = self.boot(flavor)
            self.delete(server)
            return seconds[0]

    result = unittest.TestResult()
    Spawns("test").run(result)
    for _, text in (*result.errors, *result.failures):
        raise SystemExit(text)
    return Spawns.table


def _stock(compute: Any) -> Any:
    """Nova's own driver beside ours, of the same compute service."""
    from nova.virt import driver

    stock = driver.load_compute_driver(compute.virtapi, _STOCK)
    stock.init_host(compute.host)
    return stock


def memory_rows() -> list[report.Row]:
    ours, stock = _resident_mb(_OURS), _resident_mb(_STOCK)
    return [
        report.Row("memory of nova-compute", ours, stock, "MB"),
        report.Row("memory the driver adds", ours - stock, None, "MB"),
    ]


def _resident_mb(driver: str) -> float:
    folder = place.folder()
    flags: list[tuple[str | None, str, object]] = [
        ("libvirt", "virt_type", "lxc"),
        ("libvirt", "connection_uri", "lxc:///"),
        ("libvirt", "uid_maps", ["0:100000:65536"]),
        ("libvirt", "gid_maps", ["0:100000:65536"]),
        (None, "state_path", str(folder)),
        (None, "instances_path", str(folder)),
    ]
    if driver == _OURS:
        flags += [
            ("gpu", "sysfs_root", str(folder / "host/sys")),
            ("gpu", "proc_root", str(folder / "host/proc")),
        ]
    argv = [sys.executable, "-c", _MEMORY, driver, json.dumps(flags)]
    printed = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    return int(printed.split()[-1]) * 1024 / 1e6


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=10, help="how often each driver spawns")
    arguments = parser.parse_args()
    if place.FOLDER not in os.environ:
        if reason := outside.obstacle():
            print(f"SKIP: {reason}")
            return 77
        return outside.run("benchmarks.spawn", *sys.argv[1:])
    stream = running.begin()
    rows = [*spawn_rows(arguments.runs), *memory_rows()]
    with contextlib.redirect_stdout(stream):
        report.show(rows, as_json=arguments.json, notes=NOTES)
    stream.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
