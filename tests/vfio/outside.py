# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.outside OUT FOLDER [PATTERN ...]``: the tests that need a cloud.

They run here, with all of Nova but nova-compute, which runs in a VM of theirs. It ends with
:data:`LOST` where that VM did before the tests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable

from tests.cloud import running
from tests.vfio import place, progress
from tools.vfiolab import boot
from tools.vfiolab import place as vm_place
from tools.vfiolab import vm as vms

LOST = 70
_BOOT = "boot.json"
_LIMIT_S = 3600.0


def lost(out: pathlib.Path) -> boot.Boot:
    """Of a process that ended with :data:`LOST`."""
    said = json.loads((out / _BOOT).read_text())
    return boot.Boot(**{**said, "end": boot.End[said["end"]]})


def with_vm(out: pathlib.Path, work: Callable[..., int]) -> int:
    """*work*'s answer, given the :class:`tests.vfio.cloud.VM` that was booted for it.

    This process ends at once where the VM does before its time: whatever waits for it would wait
    for ever.
    """
    from tests.vfio import cloud

    # To Nova's test base the cloud of all tests is one test.
    os.environ.pop("OS_TEST_TIMEOUT", None)
    made = vms.build(vm_place.STATE, vm_place.ROOT, pathlib.Path(sys.prefix))
    vm = cloud.VM(out)
    is_over = threading.Event()

    def run() -> None:
        done = boot.run(
            made,
            [*place.PYTHON, "tests.vfio.agent", str(vm.port)],
            out,
            limit_s=_LIMIT_S,
            environment={place.KEY: vm.key},
            retries=0,
            on_output=lambda text: None,
            on_retry=lambda each: None,
        )
        if not is_over.is_set():
            text = json.dumps({**dataclasses.asdict(done), "end": done.end.name})
            (out / _BOOT).write_text(text)
            os._exit(LOST)

    thread = threading.Thread(target=run)
    thread.start()
    vm.wait()
    status = work(vm)
    is_over.set()
    vm.end()
    thread.join()
    return status


def main() -> int:
    stream = running.begin()
    from tests.vfio import cloud

    out, folder, patterns = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    part = out.name
    tests = progress.left(part, folder, patterns, out)
    # The other cloud will have run the last one before this one is up.
    if len(tests) < (1 if part == progress.CLOUD else 2):
        return 0
    if part == progress.CLOUD:
        progress.begin(tests[0], part, out)

    def work(vm: cloud.VM) -> int:
        result = progress.Result(stream, out, vm.expect_alive)
        for text in cloud.run(lambda: progress.run(tests, result, part, out), vm):
            result.cloud_failed(text)
        stream.flush()
        return 1 if result.failed else 0

    return with_vm(out, work)


if __name__ == "__main__":
    running.leave(main)
