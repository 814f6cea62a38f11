# SPDX-License-Identifier: Apache-2.0
"""What Placement takes to find 8 of 8 GPUs.

python -m benchmarks.placement [--json]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

from benchmarks import report

HOSTS = (1, 100, 1000)
DEADLINE_S = 60
MEMORY = 4 << 30

NOTES = (
    "GET /allocation_candidates for an instance with all 8 GPUs of a host, the query made by Nova:",
    "the median of up to 5 answers. Ours: one provider per group of GPUs, total=8. Other: one",
    "provider per GPU, one request group per GPU, the shape of Nova's PCI in Placement. Tuned:",
    "max_allocation_candidates=1000, breadth-first, optimize_for_wide_provider_trees, for both.",
    "Placement and SQLite in one process per cell, which gets 60 s for an answer and 4 GiB.",
)


def databases() -> str:
    """The folder for databases: in memory, where nobody said otherwise and the system has one."""
    return os.environ.get("TMPDIR") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp")


def cell(shape: str, hosts: int, *, tuned: bool) -> float | str:
    """Milliseconds, or why there are none."""
    command = [sys.executable, "-m", "benchmarks.placement_cell", shape, str(hosts), str(MEMORY)]
    if tuned:
        command.append("--tuned")
    environment = os.environ | {"OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryDirectory(dir=databases()) as folder,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment | {"TMPDIR": folder},
        ) as child,
    ):
        try:
            outcome = _outcome(child)
        finally:
            child.kill()
        if outcome is None:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {errors.read()}")
        return outcome


def _outcome(child: subprocess.Popen[str]) -> float | str | None:
    """``None`` where the child failed. It says when it has built its cloud; then time runs."""
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        return None
    late = threading.Event()

    def end() -> None:
        late.set()
        child.kill()

    # Not communicate(): it reads past what readline() has taken into its buffer.
    deadline = threading.Timer(DEADLINE_S, end)
    deadline.start()
    output = child.stdout.read()
    deadline.cancel()
    if late.is_set():
        return f">{DEADLINE_S} s"
    if output == "memory\n":
        return f">{MEMORY >> 30} GiB"
    return statistics.median(json.loads(output)) * 1000 if output else None


def rows() -> Iterator[report.Row]:
    for hosts in HOSTS:
        for tuned in (False, True):
            name = f"{hosts:,} host{'s' if hosts > 1 else ''}, {'tuned' if tuned else 'default'}"
            print(f"{name} ...", file=sys.stderr, flush=True)
            yield report.Row(
                name, cell("ours", hosts, tuned=tuned), cell("other", hosts, tuned=tuned), "ms"
            )


def main() -> None:
    options = report.parser(__doc__).parse_args()
    report.show(rows(), as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
