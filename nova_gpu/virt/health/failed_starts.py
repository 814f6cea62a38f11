# SPDX-License-Identifier: Apache-2.0
"""Devices with which guests fail to start: the host's fault, or that of a virtual function.

Failures of different devices with one cause are the host's, unless a start succeeds in between. For
example nvidia-vgpu-mgr may be down, and every function fails then.

If a QEMU process is killed while it starts with an NVIDIA vGPU, the vGPU's function may be
unusable from then on: each later start with it fails, and sysfs does not show why (kernel/hypeman,
lib/devices/GPU.md, about L40S with R580). The remedy is to disable and enable all functions of the
card.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from oslo_log import log as logging

from nova_gpu.conf import NOVAS
from nova_gpu.core import exception, printable
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source, Unavailable
from nova_gpu.core.vgpu.vgpu import DividedCard, VGPUKind
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

MOST = 3
_FAILED = Unavailable(
    f"{MOST} guests in a row failed to start with it",
    "take its card's functions away and enable them again while no guest has one",
    Source.STARTS,
)

# The exceptions of reading a file that does not exist, or not in the format of FailedStarts
_NOT_UNDERSTOOD = (
    *(FileNotFoundError, ValueError, LookupError, TypeError, ArithmeticError),
    exception.InvalidPciAddress,
)

# Failures of different devices are alike within this time, and a host that is closed for their kind
# gets one start in it.
TOGETHER_S = 600.0
_CLOSED = Unavailable(
    "guests with different devices of its kind failed to start for the same reason",
    "see nova-compute's log for the reason; one start is tried in each ten minutes, and one that "
    "succeeds ends this",
    Source.STARTS,
)
_FAILING = Unavailable(
    f"{MOST} guests in a row failed to start with it",
    "see nova-compute's log for the reason; it is tried again after ten minutes",
    Source.STARTS,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Failures:
    """The starts in a row that failed with one device.

    ``first`` and ``last`` are the times of the first and the last one with this ``cause``.
    ``is_own``: whether another device of the kind has started since, so that this one is at fault.
    ``project_id``: the project whose requests may be at fault instead, if any.
    """

    cause: str
    times: int
    first: float
    last: float
    is_own: bool = False
    project_id: str | None = None

    def is_alike(self, other: _Failures) -> bool:
        apart = max(self.first, other.first) - min(self.last, other.last)
        if self.is_own or other.is_own or apart > TOGETHER_S or self.cause != other.cause:
            return False
        return self.project_id is None or self.project_id != other.project_id


# By function: the inode number of its folder in sysfs, and the number of failed starts. Until the
# host boots, a folder never gets the number of an earlier one (__kernfs_new_node in the kernel's
# fs/kernfs/dir.c), so a function that was disabled and enabled has a new number.
_Counts = Mapping[PciAddress, tuple[int, int]]


class FailedStarts:
    """The starts of guests that failed, by device, and what follows for new instances.

    Two devices of one kind that fail alike close the host for that kind: new instances get none of
    it, but for one start in ``TOGETHER_S``. A start that succeeds opens the host. If the cause is
    unknown, failures of one project do not close it: what that project asks for may be at fault.

    A device with ``MOST`` failures in a row is not given for ``TOGETHER_S``, so that another one is
    tried. If that starts, the first one is at fault: a virtual function is not given until it is
    enabled anew, any other device after each further failure not for ``TOGETHER_S``. All is in one
    file in the state path, valid for the present boot of the host, whose clock the times are of::

        {"boot_id": "...", "functions": [["0000:3b:00.4", 48211, 3], ...],
         "failures": [["TYPED", "0000:3b:00.4", ["EIO", 3, 812.5, 901.2, false, null]], ...],
         "tried": [["TYPED", 901.2]]}

    Threads may share the object.

    :param path: the file, which need not exist yet
    :param serves: whether this is nova-compute, and not a command that only reads the file
    """

    def __init__(self, path: pathlib.Path, roots: Roots, *, serves: bool = True) -> None:
        self._path, self._roots, self._serves = path, roots, serves
        self._lock = threading.Lock()
        self._counts: _Counts = {}
        self._failures: dict[VGPUKind | None, dict[str, _Failures]] = {}
        # When the host was closed for a kind, or last let a start of it through
        self._tried: dict[VGPUKind | None, float] = {}
        self._is_read = False
        self._written: Mapping[str, Any] = {}
        self._save()
        if not serves:
            return
        for kind in filter(self._is_closed, self._failures):
            LOG.warning("New instances do not get %s of this host: %s", _noun(kind), _CLOSED)
        if unavailable := self.unavailable():
            LOG.warning(
                "New instances do not get virtual functions %s: before nova-compute was started, "
                "%d guests in a row failed to start with each.",
                ", ".join(sorted(map(str, unavailable))),
                MOST,
            )

    def failed(
        self,
        kind: VGPUKind | None,
        device: PciAddress | str,
        cause: str,
        error: Exception,
        *,
        is_its_own: bool = False,
        project_id: str | None = None,
    ) -> None:
        """Note that a guest failed to start with a device; log what new instances do not get now.

        :param kind: the kind of the device, ``None`` for a whole card
        :param device: the card or function; if any other one would fail, too, or the device is
            made for the guest, the uuid of the instance
        :param cause: a text that is the same for all failures alike
        :param is_its_own: whether it is a virtual function that may be at fault itself
        :param project_id: the project whose request may be at fault, ``None`` if it cannot be
        """
        with self._changing():
            now, was_closed = time.monotonic(), self._is_closed(kind)
            failures = self._failures.setdefault(kind, {})
            if not was_closed:
                for other in [n for n, f in failures.items() if _is_old(f) and f.times < MOST]:
                    del failures[other]
            name = str(device)
            before = failures.get(name)
            if before is None or before.cause != cause:
                before = _Failures(cause, before.times if before else 0, now, now)
            elif _is_old(before) and not was_closed:
                before = dataclasses.replace(before, first=now)
            failures[name] = dataclasses.replace(
                before, times=before.times + 1, last=now, project_id=project_id
            )
            text = printable.printable(str(error), printable.MOST_OF_A_LINE)
            if self._is_closed(kind):
                counts = self._counts.items()
                self._counts = {item: n for item, n in counts if str(item) not in failures}
                if not was_closed:
                    self._tried[kind] = now
                    LOG.error(
                        "New instances do not get %s of this host: guests failed to start with "
                        "different ones within %d minutes, the last one with: %s. One start is "
                        "tried in each %d minutes, until one succeeds.",
                        _noun(kind),
                        TOGETHER_S / 60,
                        text,
                        TOGETHER_S / 60,
                    )
            elif isinstance(device, str):
                return
            elif is_its_own:
                self._count(device, text)
            elif failures[name].times == MOST:
                LOG.error(
                    "%d starts in a row failed with %s, the last one with: %s. New instances do "
                    "not get it for %d minutes.",
                    MOST,
                    device,
                    text,
                    TOGETHER_S / 60,
                )

    def _count(self, function: PciAddress, error: str) -> None:
        if (folder := self._folder(function)) is None:
            return
        before, times = self._counts.get(function, (folder, 0))
        count = folder, times + 1 if before == folder else 1
        if count == (folder, MOST):
            LOG.error(
                "New instances do not get virtual function %(function)s: %(times)d guests in a row "
                "failed to start with it, the last one with: %(error)s. If other functions of its "
                "card start, disable the card's functions and enable them again while no guest has "
                "one (/usr/lib/nvidia/sriov-manage -d, then -e, with the card's address).",
                {"function": function, "times": MOST, "error": error},
            )
        self._counts = {**self._counts, function: count}

    def begins(self, kind: VGPUKind | None) -> bool:
        """Note that a new guest begins to start with a device; return whether the host is closed.

        A closed host gets no other start for ``TOGETHER_S``.
        """
        with self._changing():
            if is_closed := self._is_closed(kind):
                self._tried[kind] = time.monotonic()
            return is_closed

    def started(self, kind: VGPUKind | None, devices: Iterable[PciAddress] = ()) -> None:
        """Forget the failures of the host and of *devices*, with which a guest has started."""
        over = frozenset(devices)
        names = set(map(str, over))
        with self._changing():
            if self._is_closed(kind):
                LOG.info("New instances get %s of this host again: a guest started", _noun(kind))
                self._failures.pop(kind)
            own = self._failures.get(kind, {}).items()
            self._failures[kind] = {
                name: dataclasses.replace(item, is_own=True)
                for name, item in own
                if item.times >= MOST and name not in names
            }
            self._counts = {item: n for item, n in self._counts.items() if item not in over}

    def unavailable(self) -> dict[Device, Reasons]:
        """Return the functions that new instances do not get for failures of their own."""
        with self._lock:
            return {
                function: (_FAILED,)
                for function, (_, times) in self._counts.items()
                if times >= MOST and not self._is_over(function)
            }

    def _is_over(self, function: PciAddress) -> bool:
        """Return whether the failures of *function* are old and no other one has started since."""
        failures = (own.get(str(function)) for own in self._wedging())
        return any(item and not item.is_own and _is_old(item) for item in failures)

    def _wedging(self) -> Iterator[dict[str, _Failures]]:
        """Yield the failures with virtual functions that may be at fault themselves."""
        return (own for kind, own in self._failures.items() if kind and kind.may_wedge)

    def failing(
        self, kind: VGPUKind | None, devices: Collection[PciAddress]
    ) -> dict[PciAddress, Reasons]:
        """Return the cards or functions among *devices* with which guests fail, and the reasons.

        On a host that is closed for the kind these are all, and none while a start is due.

        :param devices: the ones of the kind that a new instance could get otherwise
        """
        with self._lock:
            if self._is_closed(kind):
                is_due = time.monotonic() - self._tried.get(kind, 0.0) >= TOGETHER_S
                return {} if is_due else dict.fromkeys(devices, (_CLOSED,))
            failures = self._failures.get(kind, {})
            return {
                dev: (_FAILING,)
                for dev in devices
                if (item := failures.get(str(dev))) and item.times >= MOST and not _is_old(item)
            }

    def _is_closed(self, kind: VGPUKind | None) -> bool:
        pairs = itertools.combinations(self._failures.get(kind, {}).values(), 2)
        return any(one.is_alike(other) for one, other in pairs)

    def look(self) -> None:
        """Forget the failures of functions that are gone or were disabled and enabled."""
        with self._changing():
            over = {f for f, count in self._counts.items() if count[0] != self._folder(f)}
            for own, function in itertools.product(self._wedging(), over):
                own.pop(str(function), None)
            self._counts = {item: n for item, n in self._counts.items() if item not in over}

    def _folder(self, function: PciAddress) -> int | None:
        """Return the inode number of the function's folder in sysfs, ``None`` without a folder."""
        try:
            return os.stat(sysfs.device(function, self._roots)).st_ino
        except OSError:
            return None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._save()

    def _load(self) -> None:
        """Add what is in the file, unless it is missing, or of another boot or format.

        :raises OSError: if the file cannot be read
        """
        failures: dict[VGPUKind | None, dict[str, _Failures]] = {}
        try:
            content = files.read_json(self._path)
            if content["boot_id"] != self._roots.boot_id():
                return
            counts = {PciAddress.parse(a): (int(n), int(t)) for a, n, t in content["functions"]}
            for kind, name, (cause, times, *ends, is_own, project) in content.get("failures", ()):
                first, last = map(float, ends)
                known = _Failures(str(cause), int(times), first, last, bool(is_own), project)
                failures.setdefault(_kind(kind), {})[str(name)] = known
            tried = {_kind(kind): float(at) for kind, at in content.get("tried", ())}
        except _NOT_UNDERSTOOD:
            return
        self._counts = {**counts, **self._counts}
        self._tried = {**tried, **self._tried}
        for kind in self._failures:
            failures[kind] = {**failures.get(kind, {}), **self._failures[kind]}
        self._failures = failures

    def _content(self) -> dict[str, Any]:
        functions = sorted((str(item), *count) for item, count in self._counts.items())
        failures = [
            (kind and kind.name, name, dataclasses.astuple(item))
            for kind, items in self._failures.items()
            for name, item in items.items()
        ]
        tried = [(kind and kind.name, at) for kind, at in self._tried.items()]
        return {"functions": functions, "failures": failures, "tried": tried}

    def _save(self) -> None:
        """Write the file if anything has changed; read it first, if it was not read yet."""
        try:
            if not self._is_read:
                # A file that could not be read is not overwritten.
                mine = self._content()
                self._load()
                self._is_read, self._written = True, {} if any(mine.values()) else self._content()
            content = self._content()
            if content != self._written:
                files.write_json(self._path, {"boot_id": self._roots.boot_id(), **content})
                self._written = content
        except OSError as error:
            if self._serves:
                LOG.warning(
                    "Failed to write with which devices guests failed to start; what follows for "
                    "new instances lasts until nova-compute ends: %s",
                    error,
                )


def of_cards(
    gpus: Iterable[GPU], parts: Mapping[PciAddress, DividedCard], roots: Roots
) -> dict[PciAddress, Reasons]:
    """Return why new instances do not get cards, or any part of them, for the commands."""
    starts = FailedStarts(path(), roots, serves=False)
    reasons = starts.failing(None, [gpu.address for gpu in gpus if gpu.address not in parts])
    for address, card in parts.items():
        by_function = [starts.failing(p.kind, [function]) for function, p in card.parents.items()]
        if by_function and all(by_function):
            (reasons[address],) = by_function[0].values()
    return reasons


def path() -> pathlib.Path:
    return pathlib.Path(NOVAS.state_path, "gpu-failed-starts")


def _noun(kind: VGPUKind | None) -> str:
    return kind.value if kind else "GPUs"


def _kind(name: str | None) -> VGPUKind | None:
    return None if name is None else VGPUKind[name]


def _is_old(failures: _Failures) -> bool:
    return time.monotonic() - failures.last >= TOGETHER_S
