# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu verify``: compares what sysfs, libvirt, Nova's database and Placement say of GPUs."""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Mapping
from typing import Any

from nova_gpu.cmd import host_check, services, this_host, waiting
from nova_gpu.cmd.output import Format, print_json
from nova_gpu.core import boundary, exception, printable
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.verify import contradictions, gather, repair
from nova_gpu.virt.verify.sources import Difference

# An operator waits: by default the message bus is tried for ever.
_DEADLINE_S = 60.0
# Nova may be changing one source after the other when they are read.
_AGAIN_AFTER_S = 3.0

DIFFERENT = 1
INCOMPLETE = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The differences between sysfs, libvirt, Nova's database and Placement, and failed reads.

    ``unread`` are sentences about sources that could not be read. ``repaired`` has each difference
    that --repair has tried to repair, with the reason if that failed and ``None`` if it succeeded.
    """

    differences: tuple[Difference, ...]
    unread: tuple[str, ...]
    repaired: Mapping[Difference, str | None]

    @property
    def status(self) -> int:
        """The exit status: 0, no difference; 1, a difference remains; 3, a source is unreadable."""
        if self.unread:
            return INCOMPLETE
        is_left = any(self.repaired.get(item, "") is not None for item in self.differences)
        return DIFFERENT if is_left else 0


def judge(sources: gather.Sources, *, mend: bool, again_after_s: float = _AGAIN_AFTER_S) -> Verdict:
    """Compare the sources; after a difference compare again, and return what still differs."""
    state = gather.gather(sources)
    differences = contradictions.compare(state)
    if differences:
        time.sleep(again_after_s)
        state = gather.gather(sources)
        differences = tuple(d for d in contradictions.compare(state) if d in set(differences))
    safe = [difference for difference in differences if mend and difference.safe]
    done: dict[str, str | None] = {}
    for difference in safe:
        if difference.subject not in done:  # all that concerns one consumer is one request
            try:
                repair.repair(difference, state, sources.placement)
                done[difference.subject] = None
            except exception.NotRepaired as error:
                done[difference.subject] = str(error)
    repaired = {difference: done[difference.subject] for difference in safe}
    return Verdict(differences, state.unread, repaired)


def text(verdict: Verdict) -> str:
    """Return the verdict as text for people."""
    lines = [f"Not compared: {reason}" for reason in verdict.unread]
    for difference in verdict.differences:
        lines.append(f"{difference.kind}: {difference.text}")
        outcome = verdict.repaired.get(difference, "")
        if outcome is None:
            lines.append("    repaired")
        else:
            lines.append(f"  - {outcome or difference.remedy}")
    if not lines:
        lines.append("sysfs, libvirt, Nova's database and Placement agree about this host's GPUs.")
    return printable.lines("\n".join(lines))


def as_plain(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as values for JSON."""
    differences = [
        {
            **dataclasses.asdict(difference),
            "repaired": difference in verdict.repaired and verdict.repaired[difference] is None,
            "not_repaired_because": verdict.repaired.get(difference),
        }
        for difference in verdict.differences
    ]
    return {"differences": differences, "not_compared": list(verdict.unread)}


def run(command: Any, line: list[str]) -> int:
    """Run ``nova-gpu verify``; return the exit status.

    :param line: the command line, the program's name included
    :raises cfg.Error, OSError, ValueError: as :func:`nova_gpu.cmd.options.read`
    """
    services.read_options(line)
    as_json = command.format == Format.JSON
    return main(this_host.discover(), as_json=as_json, mend=command.repair)


def main(discovery: Discovery, *, as_json: bool, mend: bool) -> int:
    """Compare the sources, repair if *mend*, and print the verdict; return the exit status."""
    try:
        services.connect()
    except boundary.Failure as error:
        print(services.no_bus(error), file=sys.stderr)
        return INCOMPLETE
    host = services.libvirt()

    unavailable = functools.partial(host_check.unavailable, discovery)
    sources = gather.Sources(
        discovery, host, services.Placement(), unavailable, waiting.within(_DEADLINE_S)
    )
    with waiting.shown("comparing sysfs, libvirt, Nova's database and Placement"):
        verdict = judge(sources, mend=mend)
    if as_json:
        print_json(as_plain(verdict))
    else:
        print(text(verdict))
    sys.stdout.flush()
    return verdict.status
