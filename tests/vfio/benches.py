# SPDX-License-Identifier: Apache-2.0
"""Which hosts the tests of a folder have, each in a VM of its own, and of which release."""

from __future__ import annotations

import dataclasses
import pathlib
import socket
import sys
from collections.abc import Iterable, Mapping

from lab.vm import build_cache, debian, saved
from lab.vm import vm as vms
from tests.cloud import wire


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """``hosts``: their names in Nova"""

    hosts: tuple[str, ...]
    release: debian.Release


ONE = Bench((wire.HOST,), debian.STABLE)
# QEMU moves no device of vfio before 8.1.
PAIR = Bench((wire.HOST, "other"), debian.NEWER)
# Nova has libvirt choose the UEFI firmware and says secure='no', which 9.0 refuses together.
NEWER = dataclasses.replace(ONE, release=debian.NEWER)
# What a VM has imported before it is saved
IMPORTED = "tests.cloud.imports"
_OF_FOLDER = {"tests/bars": NEWER, "tests/moves": PAIR}


def of(folders: Iterable[str]) -> Bench:
    """:raises ValueError: where they have not the same"""
    (found,) = {_OF_FOLDER.get(folder.rstrip("/"), ONE) for folder in folders}
    return found


def build(bench: Bench) -> Mapping[str, vms.VM]:
    """The VM of each host; where there are two, each has a line to the other.

    :raises lab.cloud.steps.Failed: with the log of what failed
    :raises lab.packages.MachineNotReady: where packages are missing and cannot be added
    """
    made = vms.build(build_cache.STATE, build_cache.ROOT, pathlib.Path(sys.prefix), bench.release)
    if len(bench.hosts) == 1:
        return {host: _saved(made, bench) for host in bench.hosts}
    joined = [_saved(each, bench) for each in _joined(made)]
    return dict(zip(bench.hosts, joined, strict=True))


def _saved(made: vms.VM, bench: Bench) -> vms.VM:
    return saved.build(build_cache.STATE, made, bench.release, IMPORTED)


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
