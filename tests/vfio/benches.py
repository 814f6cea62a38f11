# SPDX-License-Identifier: Apache-2.0
"""Which hosts the tests of a folder have, each in a VM of its own, and what divides their cards."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence

from lab.vm import build_cache, debian, modules, saved
from lab.vm import vm as vms
from tests.cloud import wire


@dataclasses.dataclass(frozen=True, slots=True)
class Bench:
    """``hosts``: their names in Nova. ``sample``: the name of the module of :mod:`lab.vm.modules`
    that divides their cards. ``not_on_bookworm``: why Debian 12 cannot run the tests, empty if it
    can. ``processors``: of each VM"""

    hosts: tuple[str, ...]
    sample: str = modules.NAME
    not_on_bookworm: str = ""
    processors: int = 1


ONE = Bench((wire.HOST,))
PAIR = Bench((wire.HOST, "other"), modules.LINE, "QEMU 7.2 of Debian 12 moves no VFIO device")
TRIO = Bench((wire.HOST, "second", "third"))
UEFI = Bench(
    (wire.HOST,), not_on_bookworm="libvirt 9.0 of Debian 12 starts no UEFI guest of Nova's"
)
NUMA = Bench((wire.HOST,), processors=2)
# AppArmor confines libvirtd and guests.
IS_CONFINED = "NOVA_GPU_CONFINED" in os.environ
# What a VM has imported before it is saved
IMPORTED = "tests.cloud.imports"
_OF_FOLDER = {
    "tests/bars": UEFI,
    "tests/moves": PAIR,
    "tests/numa": NUMA,
    "tests/takeover": TRIO,
}


def of(folders: Iterable[str]) -> Bench:
    """:raises ValueError: where they have not the same"""
    (bench,) = {_OF_FOLDER.get(folder.rstrip("/"), ONE) for folder in folders}
    return bench


def obstacle(bench: Bench) -> str | None:
    """Return why this machine cannot run its tests, ``None`` if it can or only packages are
    missing."""
    reason = vms.obstacle(pathlib.Path(sys.prefix))
    return reason or (bench.not_on_bookworm if debian.codename() == "bookworm" else "") or None


def build(bench: Bench) -> Mapping[str, vms.VM]:
    """The VM of each host; those of a pair have a line to each other."""
    options = {"processors": bench.processors, "confined": IS_CONFINED}
    made = vms.build(build_cache.STATE, build_cache.ROOT, pathlib.Path(sys.prefix), **options)
    several = _numbered(made, len(bench.hosts)) if len(bench.hosts) > 1 else [made]
    plain = _joined(*several) if bench == PAIR else several
    return {
        host: saved.build(build_cache.STATE, vm, IMPORTED)
        for host, vm in zip(bench.hosts, plain, strict=True)
    }


def _numbered(made: vms.VM, count: int) -> Sequence[vms.VM]:
    names = (f"{made.name}{number}" for number in range(1, count + 1))
    return [dataclasses.replace(made, name=name) for name in names]


def _joined(first: vms.VM, second: vms.VM) -> tuple[vms.VM, vms.VM]:
    with _port() as one, _port() as other:
        ports = one.getsockname()[1], other.getsockname()[1]
    return (
        dataclasses.replace(first, line=vms.Line(1, *ports)),
        dataclasses.replace(second, line=vms.Line(2, *reversed(ports))),
    )


def _port() -> socket.socket:
    udp_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp_socket.bind(("127.0.0.1", 0))
    return udp_socket
