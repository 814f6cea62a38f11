# SPDX-License-Identifier: Apache-2.0
"""The counters of claims, failed starts and cleanings in nova-compute, for ``nova-gpu exporter``.

They are in one file in the state path, so that they outlive the service and the exporter, another
process, can read them. No decision depends on them, and no operation fails because of them: a count
that cannot be written is lost.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from oslo_log import log as logging

from nova_gpu.core import boundary
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

OUTCOMES = ("clean", "failed")
_NAME = "gpu-counters.json"
_lock = threading.Lock()
_folder: pathlib.Path | None = None

_Number = TypeVar("_Number", int, float)


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """The counts since the first start of the service on this host.

    ``claims`` counts cards and ``vgpu_claims`` vGPUs that were claimed. ``failures`` counts failed
    starts of guests with GPUs, by the class of the error. ``cleanings`` and ``cleaning_seconds``
    are by outcome, one of :data:`OUTCOMES`.

    ``period_at`` is when the last period ended that read the cards, libvirt and Nova's database
    without a failure, in seconds of Unix, 0 before the first one. ``free`` is how many cards new
    instances could get then, whole or in parts.
    """

    claims: int = 0
    vgpu_claims: int = 0
    failures: Mapping[str, int] = dataclasses.field(default_factory=dict)
    cleanings: Mapping[str, int] = dataclasses.field(default_factory=dict)
    cleaning_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    period_at: float = 0.0
    free: int = 0


def read(folder: pathlib.Path) -> Counters:
    """Return the counters in the state path *folder*; zeros if they cannot be read."""
    try:
        return _read(folder)
    except OSError as error:
        LOG.debug("Cannot read the GPU counters: %s", error)
        return Counters()


def _read(folder: pathlib.Path) -> Counters:
    """Return the counters in *folder*; zeros if there is no file, or its content is invalid.

    :raises OSError: if the file cannot be read
    """
    try:
        fields = files.read_json(folder / _NAME)
        return Counters(
            claims=int(fields["claims"]),
            vgpu_claims=int(fields.get("vgpu_claims", 0)),  # earlier releases have none
            failures={str(k): int(v) for k, v in fields["failures"].items()},
            cleanings={str(k): int(v) for k, v in fields["cleanings"].items()},
            cleaning_seconds={str(k): float(v) for k, v in fields["cleaning_seconds"].items()},
            period_at=float(fields.get("period_at", 0)),
            free=int(fields.get("free", 0)),
        )
    except FileNotFoundError:
        return Counters()
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        LOG.debug("The file of the GPU counters is invalid, so they start from zero: %s", error)
        return Counters()


def begin(folder: pathlib.Path) -> None:
    """Write later counts to the state path *folder*; without this call nothing is counted.

    Only nova-compute calls it, not the commands.
    """
    global _folder
    _folder = folder


def claimed(cards: int, vgpus: int) -> None:
    """Add the numbers of *cards* and *vgpus* that one instance claimed to the counters."""
    _change(
        lambda now: dataclasses.replace(
            now, claims=now.claims + cards, vgpu_claims=now.vgpu_claims + vgpus
        )
    )


def failed(error: Exception) -> None:
    reason = type(error).__name__
    _change(lambda now: dataclasses.replace(now, failures=_more(now.failures, reason, 1)))


def cleaned(seconds: float, *, clean: bool) -> None:
    """Count one cleaning of a card or vGPU, and add its duration in seconds."""
    outcome = OUTCOMES[0 if clean else 1]
    _change(
        lambda now: dataclasses.replace(
            now,
            cleanings=_more(now.cleanings, outcome, 1),
            cleaning_seconds=_more(now.cleaning_seconds, outcome, seconds),
        )
    )


def period(free: int) -> None:
    """Note that a period without a failure ends now, and the number of *free* cards in it."""
    _change(lambda now: dataclasses.replace(now, period_at=time.time(), free=free))


def _more(counts: Mapping[str, _Number], key: str, amount: _Number) -> dict[str, _Number]:
    return {**counts, key: counts[key] + amount if key in counts else amount}


def _change(change: Callable[[Counters], Counters]) -> None:
    if _folder is None:
        return
    try:
        with boundary.crossed(), _lock:
            content = dataclasses.asdict(change(_read(_folder)))
            files.write_json(_folder / _NAME, content, durable=False)
    except boundary.Failure as error:
        LOG.debug("Failed to write the GPU counters: %s", error)
