# SPDX-License-Identifier: Apache-2.0
"""The client of NVIDIA's Fabric Manager, the service that sets up a board's NVSwitches.

A partition is a set of cards that Fabric Manager can connect by the NVSwitches for one guest. The
client runs :mod:`nova_gpu_fabric.host.fabric_probe` as a process, which calls Fabric Manager's
library.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nova_gpu.core import json_text
from nova_gpu.core.model import PciAddress
from nova_gpu.host import child_process, processes
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu_fabric.core.partitions import Partition

_PROBE = child_process.source(pathlib.Path(__file__).with_name("fabric_probe.py"))

# The part of the timeout that connecting may take, so that the library itself reports a failure to
# connect before the whole timeout ends.
_TO_CONNECT = 0.5

_INSTALL = "install nvidia-fabricmanager and its devel package, of the NVIDIA driver's version"
SEE_LOG = "see systemctl status nvidia-fabricmanager and its log"
_VERSION = "it ends by itself if its version is not the driver's"

# nv_fm_types.h: the codes FM_ST_*, with the reason and the remedy for each
_TIMEOUT, _VERSION_MISMATCH, _NO_CONNECTION = -5, -6, -9
NOT_SUPPORTED, NOT_ACTIVE, IN_USE, NOT_CONFIGURED, NVLINK_ERROR = -3, -4, -7, -8, -10
_MEANINGS: Mapping[int, tuple[str, str]] = {
    -1: ("it does not know this partition", "restart nova-compute, which reads the table again"),
    NOT_SUPPORTED: (
        "it does not share the NVSwitches between guests",
        "set FABRIC_MODE=1 in fabricmanager.cfg, or 2 for vGPUs, and restart it and nova-compute",
    ),
    NOT_ACTIVE: ("the partition is not active", "there is nothing to do"),
    _TIMEOUT: ("it did not finish the request in time", SEE_LOG),
    _VERSION_MISMATCH: ("it is of another version than its library libnvfm", _INSTALL),
    IN_USE: (
        "the partition is active already, or another one with some of its cards is",
        "see nova-gpu topology for the instances that have the partitions",
    ),
    NOT_CONFIGURED: (
        "it is starting, or has not received the active partitions since it started",
        SEE_LOG,
    ),
    _NO_CONNECTION: (
        "it does not answer",
        f"{SEE_LOG} ({_VERSION}), and check [gpu]fabric_manager_address",
    ),
    NVLINK_ERROR: (
        "the NVLinks of the partition's cards could not be brought up",
        "see the host's kernel log for SXids of its NVSwitches; restart nova-compute when they are "
        "repaired",
    ),
}


# The name of Fabric Manager's program, and its configuration file without -c (NVIDIA's package)
_PROGRAM = "nv-fabricmanager"
_CONFIG = "/usr/share/nvidia/nvswitch/fabricmanager.cfg"
# FABRIC_MODE: the mode that joins whole cards, and the mode that joins vGPUs of a whole card each
WHOLE_MODE, VGPU_MODE = 1, 2
# The control group in which systemd starts it (NVIDIA's package), also as a container sees it
_SERVICE = re.compile(
    r"^[0-9]+:[^:\n]*:(?:/\.\.)*/system\.slice/nvidia-fabricmanager\.service$", re.MULTILINE
)
_MODE = re.compile(r"\s*FABRIC_MODE\s*=\s*([0-9]+)\s*")


def mode(roots: Roots) -> int | None:
    """Return the ``FABRIC_MODE`` of the Fabric Manager that runs on this host, such as 1.

    Return ``None`` if it is unknown, or if several run with different modes. The mode is read from
    the configuration file, because Fabric Manager's library does not report it.
    """
    configs = (_config_of(f"{roots.proc}/{pid}") for pid in processes.pids(str(roots.proc)))
    modes = {_mode_in(config) for config in configs if config is not None}
    return modes.pop() if len(modes) == 1 else None


def _config_of(process: str) -> pathlib.Path | None:
    """Return the configuration file of a Fabric Manager process, ``None`` for other processes.

    Any user can give a process that name, and can start a setuid program by that name. So the
    process must run a program of that name which only root or this process's user can write. Only
    root can read which program another user's process runs; otherwise it must be of the service's
    own control group, which no other process can enter.

    :param process: the folder of the process in /proc
    """
    try:
        # The owner of the directory is the process's effective user, even if the process may not
        # be traced (task_dump_owner in the kernel's fs/proc/base.c). Other users can make the
        # reading of a command line wait.
        if os.stat(process).st_uid not in (0, os.geteuid()):
            return None
        words = processes.arguments(process)
        if pathlib.PurePath(words[0]).name != _PROGRAM:
            return None
        program = pathlib.Path(process, "exe")
        try:
            is_it = program.readlink().name == _PROGRAM and _is_trusted(program.stat())
        except PermissionError:
            is_it = _SERVICE.search(processes.control_groups(process)) is not None
    except OSError:
        return None  # the process has ended
    if not is_it:
        return None
    return pathlib.Path(words[words.index("-c") + 1] if "-c" in words[:-1] else _CONFIG)


def _is_trusted(status: os.stat_result) -> bool:
    return files.distrust(status, 0) is None or files.distrust(status, os.geteuid()) is None


def _mode_in(config: pathlib.Path) -> int | None:
    try:
        with files.opened(config) as fd:
            if not _is_trusted(os.fstat(fd)):
                return None
            lines = files.text(fd).splitlines()  # a process of that name may name a pipe
    except (OSError, ValueError):
        return None
    matches = (match for line in lines if (match := _MODE.fullmatch(line)))
    return next((int(match[1]) for match in matches), None)


class Refused(Exception):
    """The reason why Fabric Manager refused or did not answer a request, and the remedy.

    ``code`` is the FM_ST_* code that its library returned, ``None`` if the library returned none.
    """

    def __init__(self, reason: str, remedy: str, code: int | None = None) -> None:
        super().__init__(reason, remedy, code)
        self.reason, self.remedy, self.code = reason, remedy, code

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclasses.dataclass(frozen=True, slots=True)
class FailedDevice:
    """A card or an NVSwitch with failed NVLinks; ``ports`` are the numbers of these links."""

    address: str
    is_switch: bool
    ports: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FabricState:
    """Fabric Manager's answer: the partitions that it offers now, and the faults that it reports.

    ``unsupported`` are the partitions that it cannot offer because of a fault, ``failed`` are the
    cards and NVSwitches with failed NVLinks. Each is ``None`` if Fabric Manager does not report it.
    """

    partitions: tuple[Partition, ...]
    unsupported: tuple[Partition, ...] | None = None
    failed: tuple[FailedDevice, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FabricManager:
    """The client of the Fabric Manager at *address*; what that refuses raises Refused.

    It refuses to activate a partition that is active, and to deactivate one that is not.

    :param address: an IPv4 address, with or without a port, or the path of a Unix socket
    :param timeout_s: the longest time that a request may take, in seconds
    """

    address: str
    timeout_s: float

    def read(self) -> FabricState:
        """Return the partitions and the faults that Fabric Manager reports."""
        answer = self._run("partitions")
        try:
            return _fabric(answer)
        except (ValueError, LookupError, TypeError) as error:
            raise Refused(
                f"Fabric Manager's table of partitions cannot be understood: {error!r}", _INSTALL
            ) from error

    def activate(self, number: int, functions: Sequence[PciAddress] = ()) -> None:
        """Activate the partition *number*, which connects its cards for one guest.

        :param functions: for a guest with vGPUs, their virtual functions, one for each card, in the
            order of the partition's cards
        """
        self._run("activate", str(number), *map(str, functions))

    def deactivate(self, number: int) -> None:
        """Deactivate the partition *number*, which disconnects its cards."""
        self._run("deactivate", str(number))

    def set_active(self, numbers: Collection[int]) -> None:
        """Send Fabric Manager the active partitions' numbers, which it needs after a restart."""
        self._run("set", *map(str, sorted(numbers)))

    def _run(self, *words: str) -> Mapping[str, Any]:
        to_connect = str(round(self.timeout_s * _TO_CONNECT * 1000))
        try:
            output = child_process.run(
                child_process.script(_PROBE, self.address, to_connect, *words), self.timeout_s
            )
            answer = json_text.parse(output)
            error, code = answer.get("error"), answer.get("code")
        except child_process.TimedOut as late:
            raise self._refused(str(late), SEE_LOG) from late
        except (child_process.Failed, ValueError, AttributeError) as bad:
            raise self._refused(
                f"the process that calls its library failed: {bad}", _INSTALL
            ) from bad
        if error is None:
            return dict(answer)
        if code is None:
            raise Refused(f"Fabric Manager's library cannot be used: {error}", _INSTALL)
        reason, remedy = _MEANINGS.get(code, (f"{error} failed with {code}", SEE_LOG))
        raise self._refused(reason, remedy, code)

    def _refused(self, reason: str, remedy: str, code: int | None = None) -> Refused:
        return Refused(f"Fabric Manager at {self.address}: {reason}", remedy, code)


def _fabric(answer: Mapping[str, Any]) -> FabricState:
    """Parse the probe's answer to the request ``partitions``.

    :raises ValueError, LookupError, TypeError: if the answer is invalid
    """
    unsupported, failed = answer["unsupported"], answer["failed"]
    return FabricState(
        tuple(map(_partition, answer["partitions"])),
        None
        if unsupported is None
        else tuple(Partition(int(u["id"]), frozenset(u["modules"])) for u in unsupported),
        None
        if failed is None
        else tuple(FailedDevice(f["address"], f["is_switch"], tuple(f["ports"])) for f in failed),
    )


def _partition(partition: Mapping[str, Any]) -> Partition:
    gpus = partition["gpus"]
    modules = frozenset(int(gpu["module"]) for gpu in gpus)
    if len(modules) != len(gpus) or not modules:
        raise ValueError(
            f"partition {partition['id']} has {len(gpus)} cards, of {len(modules)} modules"
        )
    return Partition(
        int(partition["id"]),
        modules,
        bool(partition["active"]),
        # A partition of one card uses no NVLinks, so failed ones do not degrade it.
        frozenset(int(g["module"]) for g in gpus if len(gpus) > 1 and g["links"] < g["most_links"]),
        tuple(int(gpu["module"]) for gpu in gpus),
    )
