# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu adopt`` and ``leave`` of a host with many vGPUs, beside Nova's own part of that.

python -m tests.functional.takeover_times [--json] [--instances N] [--vgpus N]
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import logging
import pstats
import re
import unittest
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

from benchmarks import report
from tests.cloud import running

NOTES = (
    "Instances with vGPUs of stock Nova, on a host with two cards, which is taken over and",
    "given back; then each plan has been made and checked anew before the first write. Other is",
    "what Nova's objects, report client and libvirt's host take, with databases and Placement, in",
    "this process, and ours all else: seconds of a profiler, which are more than without one.",
)
_NOVA = re.compile("/(nova|oslo_[a-z_]+|osprofiler)/")
_OURS = re.compile("/nova_gpu(_migrate)?/")


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return how long *call* takes: ourselves, and in what Nova does for us."""
    profile = cProfile.Profile()
    profile.runcall(call)
    stats: Any = pstats.Stats(profile)
    of_nova = sum(
        times[3]
        for (path, *_), (*_, callers) in stats.stats.items()
        if _NOVA.search(path) and not _OURS.search(path)
        for (caller, *_), times in callers.items()
        if _OURS.search(caller)
    )
    return stats.total_tt - of_nova, of_nova


def measure(options: argparse.Namespace, stream: TextIO) -> NoReturn:
    import testtools

    from tests.fixtures import vgpu
    from tests.functional import stock

    of_card = options.instances * options.vgpus // 2

    class Takeover(stock.StockMediatedTestBase):
        run_tests_with = testtools.RunTest  # in this process
        HOSTS = ("host1",)
        TYPES = (  # type: ignore[assignment]
            vgpu.Type(
                "nvidia-64", "GRID P4-2Q", f"framebuffer=64M, max_instance={of_card}", of_card
            ),
        )

        def _setup_compute_service(self) -> None:
            self.flags(initial_cpu_allocation_ratio=64.0)
            super()._setup_compute_service()

        def test(self) -> None:
            running.leave(self._tell)

        def _tell(self) -> int:
            table = list(self._rows())  # the commands print their steps to standard error
            with contextlib.redirect_stdout(stream):
                report.show(table, as_json=options.json, notes=NOTES)
            stream.flush()
            return 0

        def _rows(self) -> Iterator[report.Row]:
            logging.disable(logging.WARNING)
            self.flags(instances=-1, cores=-1, ram=-1, group="quota")
            flavor = self.flavor(**{"resources:VGPU": str(options.vgpus)})
            for _ in range(options.instances):  # at once, Nova gives some the same device
                self.boot(flavor)
            self.computes["host1"].stop()
            self.divide(by_stock=False)
            obstacles = [
                str(obstacle) for item in self.look().holdings for obstacle in item.obstacles
            ]
            if obstacles:
                raise SystemExit("\n".join(obstacles))
            yield self._row("adopt, its plan", self.look)
            yield self._row("adopt --apply", self.adopt)
            self.take_driver()
            self.period()
            self.computes["host1"].stop()
            self.divide()
            assert len(self.look().leavings) == options.instances
            yield self._row("leave, its plan", self.look)
            yield self._row("leave --apply", self.leave)
            assert not self.look().leavings

        def _row(self, name: str, call: Callable[[], object]) -> report.Row:
            title = f"{options.instances} instances, {of_card * 2} vGPUs: {name}"
            return report.Row(title, *seconds(call), "s")

    result = unittest.TestResult()
    Takeover("test").run(result)
    raise SystemExit("\n".join(text[-3000:] for _, text in result.errors + result.failures))


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--vgpus", type=int, default=1, help="of each (default: %(default)s)")
    options = parser.parse_args()
    measure(options, running.begin())


if __name__ == "__main__":
    main()
