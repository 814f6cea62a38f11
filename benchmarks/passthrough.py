# SPDX-License-Identifier: Apache-2.0
"""The spawn of a KVM guest with one whole card: by our driver, and by Nova's own with an alias.

python -m benchmarks.passthrough [--json] [--runs N]      as root; it boots the VM of tests/vfio
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import report
from lab import packages
from lab.cloud import steps
from lab.vm import cards
from tests.cloud import running
from tests.vfio import benches, outside

# Nova's compute manager times the driver's spawn and the whole build and says so in its log.
_PHASES = ("spawn", "build")
_TOOK = re.compile(r"Took ([\d.]+) seconds to (spawn|build)")
_OURS, _STOCK = "gpu.GPULibvirtDriver", "libvirt.LibvirtDriver"
# Nova's own way: both functions of the same card by their addresses, each product an alias.
_ALIASES = {
    "display": {"vendor_id": cards.VENDOR_ID, "product_id": cards.PRODUCT_ID},
    "audio": {"vendor_id": "8086", "product_id": "2668"},
}

NOTES = (
    "The median time that driver.spawn takes in nova-compute for a guest with both functions of",
    "one card, and the whole build around it, from the claim on; the two drivers in turn, in one",
    "run, in a VM of one processor that QEMU emulates: the ratio counts. Both bind the card to",
    "vfio-pci for each guest, Nova's by libvirt's managed mode, ours from before spawn on; a",
    "prepared card is there already.",
)

Times = Mapping[str, float]


def rows(booted: Any, runs: int) -> list[report.Row]:
    """:param booted: a :class:`tests.vfio.cloud.VM`
    :raises SystemExit: where an instance did not start, since no figure would say anything
    """
    from tests.vfio import cloud

    times: dict[str, list[Times]] = {_OURS: [], _STOCK: [], "prepared": []}

    def work() -> None:
        clouds = cloud.current
        for number in range(2):
            # Each first spawn of a service is left out: it also looks the host over.
            times[_STOCK] += _spawns(clouds, _with_alias(clouds), runs)[1:]
            times[_OURS] += _spawns(clouds, _with_ours(clouds), runs)[1:]
            if number:
                with _prepared(clouds.host, cards.WHOLE[0]):
                    times["prepared"] = _spawns(clouds, _with_ours(clouds), runs)[1:]

    for error in cloud.run(work, booted):
        raise SystemExit(error)
    table = []
    for name, which in (("a card", _OURS), ("a prepared card", "prepared")):
        for phase in _PHASES:
            ours, stock = (_median(times[name], phase) for name in (which, _STOCK))
            table.append(report.Row(f"{phase} with {name}", ours, stock, "s"))
    return table


def _median(times: Sequence[Times], phase: str) -> float:
    return statistics.median(run[phase] for run in times)


def _spawns(clouds: Any, flavor: str, runs: int) -> list[Times]:
    """Of each instance the seconds of every phase"""
    before = len(_TOOK.findall(clouds.compute_log()))
    for _ in range(runs + 1):
        clouds.delete(clouds.boot(flavor))
    took = _TOOK.findall(clouds.compute_log())[before:]
    of_phase = {phase: [float(s) for s, which in took if which == phase] for phase in _PHASES}
    return [
        dict(zip(_PHASES, durations, strict=True))
        for durations in zip(*of_phase.values(), strict=True)
    ]


def _with_alias(clouds: Any) -> str:
    """The compute service is Nova's own from now on; the flavor to be asked for."""
    functions = [cards.WHOLE[0], cards.WHOLE[0].replace(".0", ".1")]
    clouds.flags(
        device_spec=[json.dumps({"address": function}) for function in functions],
        alias=[json.dumps({"name": name, **which}) for name, which in _ALIASES.items()],
        group="pci",
    )
    _restart(clouds, _STOCK)
    words = ",".join(f"{name}:1" for name in _ALIASES)
    return str(clouds.flavor(**{"pci_passthrough:alias": words}))


def _with_ours(clouds: Any) -> str:
    clouds.flags(device_spec=[], alias=[], group="pci")
    _restart(clouds, _OURS)
    return str(clouds.flavor(gpus="= 1"))


def _restart(clouds: Any, driver: str) -> None:
    clouds.flags(compute_driver=driver)
    clouds.restart_compute()


@contextlib.contextmanager
def _prepared(host: Any, card: str) -> Iterator[None]:
    """As an operator has it from boot on: vfio-pci drives the card, and no record says else."""
    functions = host.functions(card)
    for function in functions:
        host.bind(function, "vfio-pci")
    try:
        yield
    finally:
        for function in functions:
            host.bind(function, "")


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="how often each driver spawns, twice")
    arguments = parser.parse_args()
    if reason := benches.obstacle(benches.ONE):
        print(f"SKIP: {reason}")
        return 77
    try:
        with contextlib.redirect_stdout(sys.stderr):
            benches.build(benches.ONE)
    except (steps.Failed, packages.MachineNotReady) as error:
        raise SystemExit(str(error)) from error
    out = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-benchmark-", dir="/var/tmp"))
    print(f"logs: {out}", file=sys.stderr)
    stream = running.begin()

    def work(booted: Any) -> int:
        table = rows(booted, arguments.runs)
        with contextlib.redirect_stdout(stream):
            report.show(table, as_json=arguments.json, notes=NOTES)
        stream.flush()
        return 0

    return outside.with_vms(out, benches.ONE, work)


if __name__ == "__main__":
    running.leave(main)
