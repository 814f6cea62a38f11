# SPDX-License-Identifier: Apache-2.0
"""The spawn of a KVM guest with one whole card: by our driver, and by Nova's own with an alias.

python -m benchmarks.passthrough [--json] [--runs N]      as root; it boots the VM of tests/vfio
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from benchmarks import report, timing
from tests.cloud import running
from tools.novalab import steps
from tools.testing import machine
from tools.vfiolab import boot, cards, place, vm

_INSIDE = "NOVA_GPU_INSIDE"
_LIMIT_S = 3600.0
_OURS, _STOCK = "gpu.GPULibvirtDriver", "libvirt.LibvirtDriver"
# Nova's own way: both functions of the same card by their addresses, each product an alias.
_ALIASES = {
    "display": {"vendor_id": cards.VENDOR_ID, "product_id": cards.PRODUCT_ID},
    "audio": {"vendor_id": "8086", "product_id": "2668"},
}

NOTES = (
    "The median time that driver.spawn takes in nova-compute for a guest with both functions of",
    "one card, the two drivers in turn, in one process, in a VM that QEMU emulates: the ratio is",
    "what counts. Both bind the card to vfio-pci at each spawn, Nova's by libvirt's managed mode;",
    "a prepared card is there already.",
)


def rows(runs: int) -> list[report.Row]:
    """:raises SystemExit: where an instance did not start, since no figure would say anything"""
    from tests.vfio import cloud

    times: dict[str, list[float]] = {_OURS: [], _STOCK: [], "prepared": []}

    def work() -> None:
        clouds = cloud.current
        for number in range(2):
            # Each first spawn of a service is left out: it also looks the host over.
            times[_STOCK] += _spawns(clouds, _with_alias(clouds), runs)[1:]
            times[_OURS] += _spawns(clouds, _with_ours(clouds), runs)[1:]
            if number:
                with _prepared(cards.WHOLE[0]):
                    times["prepared"] = _spawns(clouds, _with_ours(clouds), runs)[1:]

    for error in cloud.run(work, pathlib.Path("/out/nova.log")):
        raise SystemExit(error)
    ours, stock, prepared = (statistics.median(times[n]) for n in (_OURS, _STOCK, "prepared"))
    return [
        report.Row("spawn with a card", ours, stock, "s"),
        report.Row("spawn with a prepared card", prepared, stock, "s"),
    ]


def _spawns(clouds: Any, flavor: str, runs: int) -> list[float]:
    with timing.spawning(clouds.computes["compute"].manager.driver) as seconds:
        for _ in range(runs + 1):
            clouds.delete(clouds.boot(flavor))
    return seconds


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
def _prepared(card: str) -> Any:
    """As an operator has it from boot on: vfio-pci drives the card, and no record says else."""
    from tests.vfio import host

    functions = host.functions(card)
    _drive(functions, "vfio-pci")
    try:
        yield
    finally:
        _drive(functions, "")


def _drive(functions: Sequence[str], driver: str) -> None:
    from tests.vfio import host

    for function in functions:
        host.unbind(function)
        host.override_by(function, driver)
        host.probe(function)


def _measure(stream: TextIO, runs: int, as_json: bool) -> None:
    found = rows(runs)
    with contextlib.redirect_stdout(stream):
        report.show(found, as_json=as_json, notes=NOTES)
    stream.flush()


def _boot(arguments: Sequence[str], show: Callable[[str], None]) -> int:
    venv = pathlib.Path(sys.prefix)
    if reason := vm.obstacle(venv):
        print(f"SKIP: {reason}")
        return 77
    try:
        with contextlib.redirect_stdout(sys.stderr):
            made = vm.build(place.STATE, place.ROOT, venv)
    except (steps.Failed, machine.MachineNotReady) as error:
        raise SystemExit(str(error)) from error
    out = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-benchmark-", dir="/var/tmp"))
    words = ["sh", "-c", 'exec "$@" 2>/out/stderr', "sh", "python", "-W", "ignore"]
    done = boot.run(
        made,
        [*words, "-m", "benchmarks.passthrough", *arguments],
        out,
        limit_s=_LIMIT_S,
        environment={_INSIDE: "1"},
        on_output=show,
        on_retry=lambda each: print(f"booting again: {each.reason}", file=sys.stderr),
    )
    if done.status != 0:
        print(f"{done.end.value}; logs: {out}", file=sys.stderr)
    return 1 if done.status is None else done.status


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="how often each driver spawns, twice")
    arguments = parser.parse_args()
    if _INSIDE not in os.environ:
        return _boot(sys.argv[1:], lambda text: print(text, end="", flush=True))
    status = 0
    try:
        _measure(running.begin(), arguments.runs, arguments.json)
    except SystemExit as error:
        print(error, file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
