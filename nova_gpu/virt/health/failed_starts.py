# SPDX-License-Identifier: Apache-2.0
"""Virtual functions with which several guests in a row failed to start.

If a QEMU process is killed while it starts with an NVIDIA vGPU, the vGPU's function may be
unusable from then on: each later start with it fails, and sysfs does not show why (kernel/hypeman,
lib/devices/GPU.md, about L40S with R580). The remedy is to disable and enable all functions of the
card.
"""

from __future__ import annotations

import os
import pathlib
import threading
from collections.abc import Iterable, Mapping

from oslo_log import log as logging

from nova_gpu.core import exception
from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
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

# By function: the inode number of its folder in sysfs, and the number of failed starts. Until the
# host boots, a folder never gets the number of an earlier one (__kernfs_new_node in the kernel's
# fs/kernfs/dir.c), so a function that was disabled and enabled has a new number.
_Counts = Mapping[PciAddress, tuple[int, int]]


class FailedStarts:
    """The number of guests in a row that failed to start with each virtual function.

    After ``MOST`` of them new instances do not get the function. Threads may share the object. The
    numbers are in one file in the state path, valid for the present boot of the host::

        {"boot_id": "...", "functions": [["0000:3b:00.4", 48211, 3], ...]}

    :param path: the file, which need not exist yet
    """

    def __init__(self, path: pathlib.Path, roots: Roots) -> None:
        self._path, self._roots = path, roots
        self._lock = threading.Lock()
        self._counts: _Counts = {}
        self._is_read = False
        self._set({})
        if unavailable := self.unavailable():
            LOG.warning(
                "New instances do not get virtual functions %s: before nova-compute was started, "
                "%d guests in a row failed to start with each.",
                *(", ".join(sorted(map(str, unavailable))), MOST),
            )

    def failed(self, functions: Iterable[PciAddress], why: Exception) -> None:
        """Count a failed start of a guest with *functions*; log those that are withheld from now.

        :param why: the error of the start
        """
        with self._lock:
            counts = dict(self._counts)
            for function in functions:
                if (folder := self._folder(function)) is None:
                    continue
                before, times = counts.get(function, (folder, 0))
                counts[function] = (folder, times + 1 if before == folder else 1)
                if counts[function] == (folder, MOST):
                    LOG.error(
                        "New instances do not get virtual function %(function)s: %(times)d guests "
                        "in a row failed to start with it, the last one with: %(why)s. If other "
                        "functions of its card start, disable the card's functions and enable them "
                        "again while no guest has one (/usr/lib/nvidia/sriov-manage -d, then -e, "
                        "with the card's address).",
                        {"function": function, "times": MOST, "why": why},
                    )
            self._set(counts)

    def started(self, functions: Iterable[PciAddress]) -> None:
        """Forget the failures of *functions*, with which a guest has started."""
        over = frozenset(functions)
        with self._lock:
            self._set({item: count for item, count in self._counts.items() if item not in over})

    def unavailable(self) -> dict[Device, Reasons]:
        """Return the functions that new instances do not get, with the reasons."""
        with self._lock:
            return {a: (_FAILED,) for a, (_, times) in self._counts.items() if times >= MOST}

    def look(self) -> None:
        """Forget the failures of functions that are gone or were disabled and enabled."""
        with self._lock:
            counts = self._counts.items()
            self._set({item: count for item, count in counts if count[0] == self._folder(item)})

    def _folder(self, function: PciAddress) -> int | None:
        """Return the inode number of the function's folder in sysfs, ``None`` without a folder."""
        try:
            return os.stat(sysfs.device(function, self._roots)).st_ino
        except OSError:
            return None

    def _load(self) -> _Counts:
        """Return the counts in the file; none if it is missing, or of another boot or format.

        :raises OSError: if the file cannot be read
        """
        try:
            content = files.read_json(self._path)
            if content["boot_id"] != self._roots.boot_id():
                return {}
            counts = [(PciAddress.parse(a), (int(n), int(t))) for a, n, t in content["functions"]]
        except _NOT_UNDERSTOOD:
            return {}
        return dict(counts)

    def _set(self, counts: _Counts) -> None:
        if counts == self._counts and self._is_read:
            return
        self._counts = counts
        try:
            if not self._is_read:
                # A file that could not be read is not overwritten.
                before = self._load()
                self._counts, self._is_read = {**before, **counts}, True
                if self._counts == before:
                    return
            functions = sorted((str(item), *count) for item, count in self._counts.items())
            content = {"boot_id": self._roots.boot_id(), "functions": functions}
            files.write_json(self._path, content)
        except OSError as error:
            LOG.warning(
                "Failed to write which virtual functions failed to start; they are withheld until "
                "nova-compute ends: %s",
                error,
            )
