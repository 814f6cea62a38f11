# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.outside OUT FOLDERS [PATTERN ...]``: the tests that are left, with VMs.

Those that need a cloud run here, with all of Nova but nova-compute, which runs in a VM. The others
run there, before. It ends with :data:`LOST` where a VM did before the tests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import threading
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lab.vm import boot
from lab.vm import vm as vms
from tests.cloud import running
from tests.vfio import benches, place, progress

if TYPE_CHECKING:
    from tests.vfio import cloud

LOST = 70
_BOOT = "boot.json"
_LIMIT_S = 4200.0


_Show = Callable[[str], None]


def _ignore(text: str) -> None:
    pass


def lost(out: pathlib.Path) -> boot.Boot:
    """Of a process that ended with :data:`LOST`."""
    fields = json.loads((out / _BOOT).read_text())
    return boot.Boot(**{**fields, "end": boot.End[fields["end"]]})


def with_vms(
    out: pathlib.Path,
    bench: benches.Bench,
    work: Callable[..., int],
    *,
    before: Sequence[str] = (),
    on_output: _Show = _ignore,
) -> int:
    """*work*'s answer, given by host the :class:`tests.vfio.cloud.VM` that was booted for it. The
    first has run the tests with the ids *before*; what they say is passed to *on_output*.

    This process ends at once where a VM does before its time: whatever waits for it would wait for
    ever.
    """
    from tests.vfio import cloud

    # To Nova's test base the cloud of all tests is one test.
    os.environ.pop("OS_TEST_TIMEOUT", None)
    is_over = threading.Event()
    booted: dict[str, cloud.VM] = {}
    threads = []

    def boot_one(vm: vms.VM, known: cloud.VM, before: Sequence[str], on_output: _Show) -> None:
        done = boot.run(
            vm,
            ["tests.vfio.agent", str(known.port), *before],
            known.out,
            limit_s=_LIMIT_S,
            environment={place.KEY: known.key},
            retries=0,
            on_output=on_output,
            on_retry=lambda _: None,
        )
        if not is_over.is_set():
            text = json.dumps({**dataclasses.asdict(done), "end": done.end.name})
            (out / _BOOT).write_text(text)
            os._exit(LOST)

    for host, vm in benches.build(bench).items():
        known = booted[host] = cloud.VM(out / host if booted else out, vm.line)
        known.out.mkdir(exist_ok=True)
        first = (before, on_output) if len(booted) == 1 else ((), _ignore)
        threads.append(threading.Thread(target=boot_one, args=(vm, known, *first)))
        threads[-1].start()
    for known in booted.values():
        known.wait()
    status = work(booted)
    is_over.set()
    for known in booted.values():
        known.end()
    for thread in threads:
        thread.join()
    return status


def main() -> int:
    stream = running.begin()
    from tests.vfio import cloud

    out, patterns = pathlib.Path(sys.argv[1]), sys.argv[3:]
    folders = sys.argv[2].split(os.pathsep)
    bench = benches.of(folders)
    left = progress.left(folders, patterns, out)
    if not (left.of_host or left.of_cloud):
        return 0

    def work(booted: Mapping[str, cloud.VM]) -> int:
        result = progress.Result(stream, out, lambda: _expect_alive(booted))
        if left.of_cloud:
            tests = unittest.TestSuite(left.of_cloud)
            for text in cloud.run(lambda: tests.run(result), booted, bench.sample):
                result.cloud_failed(text)
        return 0 if result.wasSuccessful() else 1

    def show(text: str) -> None:
        stream.write(text)
        stream.flush()

    before = [test.id() for test in left.of_host]
    return with_vms(out, bench, work, before=before, on_output=show)


def _expect_alive(booted: Mapping[str, cloud.VM]) -> None:
    for vm in booted.values():
        vm.expect_alive()


if __name__ == "__main__":
    running.leave(main)
