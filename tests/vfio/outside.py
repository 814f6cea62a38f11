# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.outside OUT FOLDER [PATTERN ...]``: the tests of a part, with its VM.

Those that need a cloud run here, with all of Nova but nova-compute, which runs in the VM. The
others run there, before. It ends with :data:`LOST` where the VM did before the tests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Sequence

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


def with_vm(
    out: pathlib.Path,
    work: Callable[..., int],
    *,
    before: Sequence[str] = (),
    on_output: Callable[[str], None] = lambda text: None,
) -> int:
    """*work*'s answer, given the :class:`tests.vfio.cloud.VM` that was booted for it and has run
    the tests with the ids *before*. What they say is passed to *on_output*.

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
            [*place.PYTHON, "tests.vfio.agent", str(vm.port), *before],
            out,
            limit_s=_LIMIT_S,
            environment={place.KEY: vm.key},
            retries=0,
            on_output=on_output,
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
    left = progress.left(part, folder, patterns, out)
    # The other one runs a single test before this one is up.
    if not left.of_host and len(left.of_cloud) < (1 if part == progress.CLOUD else 2):
        return 0
    if part == progress.CLOUD and left.of_cloud:
        progress.begin(left.of_cloud[0], part, out)

    def work(vm: cloud.VM) -> int:
        result = progress.Result(stream, out, vm.expect_alive)
        tests = progress.left(part, folder, patterns, out).of_cloud
        if tests:
            for text in cloud.run(lambda: progress.run(tests, result, part, out), vm):
                result.cloud_failed(text)
        stream.flush()
        return 1 if result.failed else 0

    def show(text: str) -> None:
        stream.write(text)
        stream.flush()

    before = [test.id() for test in left.of_host]
    return with_vm(out, work, before=before, on_output=show)


if __name__ == "__main__":
    running.leave(main)
