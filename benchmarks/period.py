# SPDX-License-Identifier: Apache-2.0
"""nova-compute's periodic update of a host that does not change, and a claim, beside Nova's driver.

python -m benchmarks.period [--json] [--runs N] [--cards N] [--alone] [--eventlet]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import cProfile
import functools
import importlib
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, TextIO
from unittest import mock

from benchmarks import report, timing
from tests.cloud import running

_MODULE = "benchmarks.period"
FUNCTIONS = 32  # of each card
_THREADS = "OS_NOVA_DISABLE_EVENTLET_PATCHING"
_OURS, _STOCK = "gpu.GPULibvirtDriver", "libvirt.LibvirtDriver"
# What the hosts have, and with which options they are looked at
_HOSTS = ("prepared", "late", "vgpus")
_NAMES = {
    "prepared": "{} prepared GPUs",
    "late": "{} GPUs with the host's driver",
    "vgpus": f"{{}} cards, {FUNCTIONS} functions each",
}

# What Nova itself gives of such hosts: these whole, or one type of each function
_ALIAS = {"vendor_id": "8086", "product_id": "1533"}  # as its stand-in for libvirt has them
_MDEV_TYPE = "nvidia-11"
_GIVING = ", Nova's gives as many"

NOTES = (
    "The median processor time, of the process and of those that it starts, that one run of the",
    "periodic task and one claim take, in Nova's own compute service with its API, database and",
    "Placement in one process; ours on a host with GPUs, the others Nova's libvirt driver on hosts",
    "beside it, in turns: one that has nothing to give, and one that gives as many devices by",
    "[pci]device_spec, counted in Placement, or by [devices]enabled_mdev_types. libvirt is Nova's",
    "stand-in, and our host's files are a generated tree in a temporary folder. In each period and",
    "claim Nova asks Placement for the allocations of every provider of a host: a host without",
    "devices has one, Nova's has one for each device, ours one for each kind. The claims are of an",
    "instance without GPUs, and of one with a GPU, beside one without.",
)


def rows(
    runs: int,
    kinds: tuple[str, ...] = _HOSTS,
    profile: str | None = None,
    *,
    cards: int = 8,
    on_eventlet: bool = False,
    with_nova: bool = True,
) -> list[report.Row]:
    """:raises subprocess.CalledProcessError: where the clouds did not come up"""
    table = []
    threads = {_THREADS: "false" if on_eventlet else "true"}
    for kind in kinds:
        words = [sys.executable, "-m", _MODULE, "--of", kind, "--runs", str(runs)]
        words += ["--cards", str(cards), *(() if with_nova else ("--alone",))]
        words += ["--profile", profile] if profile else []
        done = subprocess.run(
            words, check=True, stdout=subprocess.PIPE, env={**os.environ, **threads}
        )
        seen = json.loads(done.stdout.splitlines()[-1])
        for what, (ours, stock) in seen.items():
            name = f"{_NAMES[kind].format(cards)}{', eventlet' if on_eventlet else ''}: {what}"
            table.append(report.Row(name, ours, stock, "ms"))
    return table


def measure(
    kind: str, runs: int, stream: TextIO, profile: str | None, cards: int, with_nova: bool
) -> NoReturn:
    """Prints what was seen to *stream*, and ends the process.

    :param with_nova: whether there is a host that gives as many devices by Nova's driver
    :raises SystemExit: where there was no cloud to look at
    """
    import testtools

    from tests.fixtures import economy, hosts, vgpu

    # Tests keep what Placement answers until it is changed, which no service does.
    economy.Answers.get = lambda self, question, ask: ask()  # type: ignore[method-assign]
    kvm: Any = importlib.import_module("tests.functional.kvm")
    types = [
        vgpu.Type(
            f"nvidia-{number + 556}",
            f"NVIDIA A40-{number}Q",
            f"num_heads=4, frl_config=60, framebuffer={number * 1024}M, "
            "max_resolution=7680x4320, max_instance=32",
            available=1,
        )
        for number in range(1, 21)
    ]

    class Periods(kvm.KVMServersTestBase):  # type: ignore[misc]
        run_tests_with = testtools.RunTest  # in this process

        def _setup_compute_service(self) -> None:
            pass  # each host has its own

        def prepare(self, host: hosts.Host) -> None:
            for number in range(cards):
                card = f"0000:{0x10 + 8 * number:02x}:00.0"
                if kind != "vgpus":
                    driver = "vfio-pci" if kind == "prepared" else "nvidia"
                    host.add_gpu(card, "10de", "2235", driver=driver)
                    continue
                host.add_gpu(card, "10de", "2235", totalvfs=FUNCTIONS)
                for function in vgpu.add_functions(host, card, FUNCTIONS):
                    vgpu.add_types(host, function, types)

        def test(self) -> None:
            # The services' idle threads would be waited for, which are of no use to anybody now.
            running.leave(self._tell)

        def _tell(self) -> int:
            print(json.dumps(self._seen()), file=stream, flush=True)
            return 0

        def _seen(self) -> Mapping[str, tuple[float, float]]:
            logging.disable(logging.WARNING)
            patcher = sys.modules.get("eventlet.patcher")
            is_patched = patcher is not None and patcher.is_monkey_patched("thread")
            assert is_patched == (os.environ[_THREADS] == "false")
            self.flags(instances=-1, cores=-1, ram=-1, group="quota")
            for name, driver in (("ours", _OURS), ("stock", _STOCK)):
                self.flags(compute_driver=driver)
                self.start_host(name, "cpu-only")
            if with_nova:
                devices = self._give_by_nova()
                self.start_host("giving", "cpu-only", pci_info=devices)
            assert self.computes["ours"].driver._gpus.has_gpus
            periods = [functools.partial(self.one_period, name) for name in self.computes]
            seen = _pairs("period", timing.medians_ms(periods, runs, _processor_s, uncounted=3))
            if profile:
                self._profile(profile, runs)
            claims = {"claim without GPUs": self.flavor(), "claim with one": self.gpu_flavor(1)}
            if kind != "prepared":
                del claims["claim with one"]  # there is no kernel here that binds or makes it
            for what, flavor in claims.items():
                with _claims() as took:
                    for _ in range(max(runs // 4, 3)):
                        for name in self.computes:
                            own_flavor = flavor if name == "ours" else self.flavor()
                            self._delete_server(self.boot(own_flavor, az=f"nova:{name}"))
                medians = [statistics.median(took[name]) * 1000 for name in self.computes]
                seen |= _pairs(what, medians)
            return seen

        def _give_by_nova(self) -> Any:
            """Has hosts give their devices by Nova itself; what their libvirt lists of these"""
            from nova.tests.fixtures import libvirt

            if kind != "vgpus":
                self.flags(device_spec=[json.dumps(_ALIAS)], report_in_placement=True, group="pci")
                return libvirt.HostPCIDevicesInfo(num_pci=cards, num_pfs=0, num_vfs=0)
            self.flags(enabled_mdev_types=[_MDEV_TYPE], group="devices")
            devices = libvirt.HostPCIDevicesInfo(num_pfs=0, num_vfs=0, num_mdevcap=1)
            for number in range(1, cards * FUNCTIONS):
                at = {"bus": 0x81 + number // 32, "slot": number % 32, "function": 0}
                devices.add_device("MDEV_TYPES", **at, iommu_group=40 + number, numa_node=0)
            return devices

        def _profile(self, path: str, runs: int) -> None:
            """Of the thread in which a node is updated"""
            profiler = cProfile.Profile(time.thread_time)
            manager = self.computes["ours"].manager
            update = manager._update_available_resource_for_node
            manager._update_available_resource_for_node = functools.partial(
                profiler.runcall, update
            )
            for _ in range(runs):
                self.one_period("ours")
            manager._update_available_resource_for_node = update
            profiler.dump_stats(path)

    result = unittest.TestResult()
    Periods("test").run(result)
    raise SystemExit("\n".join(text[-3000:] for _, text in result.errors + result.failures))


def _pairs(what: str, medians: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Name ours beside each of Nova's hosts that there is."""
    ours, *others = medians
    names = (what, f"{what}{_GIVING}")
    return {name: (ours, other) for name, other in zip(names, others, strict=False)}


@contextlib.contextmanager
def _claims() -> Iterator[Mapping[str, list[float]]]:
    """By compute host, the processor seconds of each claim while it lasts"""
    from nova.compute import resource_tracker

    took: dict[str, list[float]] = collections.defaultdict(list)
    original = resource_tracker.ResourceTracker.instance_claim

    def claim(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.thread_time()
        try:
            return original(self, *args, **kwargs)
        finally:
            took[self.host].append(time.thread_time() - started)

    with mock.patch.object(resource_tracker.ResourceTracker, "instance_claim", claim):
        yield took


def _processor_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how often each is timed")
    parser.add_argument("--profile", metavar="FILE", help="write a profile of our periods to FILE")
    parser.add_argument("--cards", type=int, default=8, help="of each host")
    parser.add_argument("--alone", action="store_true", help="without Nova's that gives as many")
    parser.add_argument("--eventlet", action="store_true", help="Nova's services run on eventlet")
    parser.add_argument("--hosts", nargs="+", choices=_HOSTS, default=_HOSTS, help="which hosts")
    parser.add_argument("--of", choices=_HOSTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of:
        measure(
            options.of,
            options.runs,
            running.begin(),
            options.profile,
            options.cards,
            not options.alone,
        )
    table = rows(
        options.runs,
        tuple(options.hosts),
        options.profile,
        cards=options.cards,
        on_eventlet=options.eventlet,
        with_nova=not options.alone,
    )
    report.show(table, as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
