# SPDX-License-Identifier: Apache-2.0
"""Which hosts the tests of a folder have, each in a VM of its own, and of which release."""

from __future__ import annotations

import dataclasses
import pathlib
import socket
import sys
from collections.abc import Iterable, Mapping

from lab.vm import debian, place, saved
from lab.vm import vm as vms
from tests.cloud import wire
from tests.vfio import carried
from tools.testing import machine


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """``hosts``: their names in Nova. ``carries``: there are guests with programs of this machine's
    (:mod:`tests.vfio.carried`)"""

    hosts: tuple[str, ...]
    release: debian.Release
    carries: bool = False


ONE = Bench((wire.HOST,), debian.STABLE)
# QEMU moves no device of vfio before 8.1.
PAIR = Bench((wire.HOST, "other"), debian.NEWER)
CARRYING = dataclasses.replace(ONE, carries=True)
# Nova has libvirt choose the UEFI firmware and says secure='no', which 9.0 refuses together.
NEWER = dataclasses.replace(ONE, release=debian.NEWER)
# What a VM has imported before it is saved
IMPORTED = "tests.cloud.imports"
_OF_FOLDER = {"tests/bars": NEWER, "tests/moves": PAIR, "tests/shapes": CARRYING}


def of(folders: Iterable[str]) -> Bench:
    """:raises ValueError: where they have not the same"""
    (found,) = {_OF_FOLDER.get(folder.rstrip("/"), ONE) for folder in folders}
    return found


def build(bench: Bench) -> Mapping[str, vms.VM]:
    """The VM of each host; where there are two, each has a line to the other.

    :raises lab.cloud.steps.Failed: with the log of what failed
    :raises tools.testing.machine.MachineNotReady: where packages are missing and cannot be added
    """
    if bench.carries:
        machine.install(carried.NEEDED, place.STATE / "log" / "packages.log")
    made = vms.build(place.STATE, place.ROOT, pathlib.Path(sys.prefix), bench.release)
    if len(bench.hosts) == 1:
        return {host: _saved(made, bench) for host in bench.hosts}
    joined = [_saved(each, bench) for each in _joined(made)]
    return dict(zip(bench.hosts, joined, strict=True))


def _saved(made: vms.VM, bench: Bench) -> vms.VM:
    return saved.build(place.STATE, made, bench.release, IMPORTED)


def _joined(made: vms.VM) -> tuple[vms.VM, vms.VM]:
    with _port() as one, _port() as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    return (
        dataclasses.replace(made, line=vms.Line(1, *ports)),
        dataclasses.replace(made, line=vms.Line(2, *reversed(ports))),
    )


def _port() -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.bind(("127.0.0.1", 0))
    return found
