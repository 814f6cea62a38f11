# SPDX-License-Identifier: Apache-2.0
"""What GPUs cost in nova-scheduler: 100, 1,000 and 10,000 hosts of 8 GPUs.

python -m benchmarks.scheduling [--json] [--hosts N ...] [--burst N]
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence

# Threads, also with the releases that would take eventlet: nothing here is a service.
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")

from benchmarks import burst, filtering, report

HOSTS = (100, 1000, 10_000)

NOTES = (
    "Each row is one run in which the two took turns; the medians, of processor time where not",
    "elapsed. Filters: all hosts pass, by Nova's handler, with the blueprint's flavor for 8 GPUs",
    "as the request filter spells it out; each host is in an aggregate that has its words, and",
    "PciPassthroughFilter has the same cards by an alias, without PCI in Placement. Each run has",
    "the hosts' stats as new strings, as each request reads them from the database. First time:",
    "the strings are parsed as well, those that are equal once. Kept: what outlives the request,",
    "strings included.",
    "Burst: eight clients at once ask for as many instances as a host has room for, until each GPU",
    "of an empty cloud is in use; the API, scheduler, conductor, Placement and all compute hosts",
    "share one process, so that of the figures the counts say something, and seconds only what the",
    "next run compares. With --burst 100 that took 20 minutes.",
)


def rows(hosts: Sequence[int], *, burst_hosts: int) -> Iterator[report.Row]:
    for number in hosts:
        _say(f"{number:,} hosts: filters ...")
        yield from filtering.rows(number, runs=9 if number < 10_000 else 5)
    if burst_hosts:
        _say(f"{burst_hosts} hosts: burst ...")
        yield from burst.rows(burst_hosts)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS, metavar="N")
    parser.add_argument(
        "--burst", type=int, default=10, metavar="N", help="hosts (default: %(default)s; 0: none)"
    )
    options = parser.parse_args()
    # What was imported stays: no collection between the runs need look through half of Nova.
    gc.freeze()
    table = rows(options.hosts, burst_hosts=options.burst)
    report.show(list(table), as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
