# SPDX-License-Identifier: Apache-2.0
"""Finding what the cards of a generated host can be divided into, beside reading each file once.

python -m benchmarks.vgpus [--json]
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
import time
from collections.abc import Sequence

from benchmarks import report, timing
from nova_gpu.core import model
from nova_gpu.host.pci import discovery, selection, sysfs
from nova_gpu.host.vgpu import division
from tests.fixtures import hosts, vgpu

CARDS = 8
TYPES = 20
VFS_OF_CARD = 32

NOTES = (
    "Each card has 32 virtual functions, and each of these 20 types: as mediated devices, four",
    "files for each type, or as profiles in NVIDIA's two files. Ours is one look at those cards,",
    "that knows of each function how many of which type there are and can be, and each type's",
    "facts; the other reads every one of the files and of the links to the functions once, by the",
    "function's address, in the same process, and makes nothing of it. Both in processor time,",
    "whatever else runs on the machine.",
)


def types() -> tuple[vgpu.Type, ...]:
    return tuple(
        vgpu.Type(
            f"nvidia-{number}",
            f"NVIDIA A40-{number - 556}Q",
            f"num_heads=4, frl_config=60, framebuffer={(number - 556) * 1024}M, "
            "max_resolution=7680x4320, max_instance=32",
            available=1,
        )
        for number in range(557, 557 + TYPES)
    )


def generate(root: pathlib.Path, count: int, *, mediated: bool) -> hosts.Host:
    """A host with *count* cards. Of each one virtual function is a vGPU already."""
    host = hosts.Host(root)
    for number in range(count):
        card = f"0000:{0x10 + 8 * number:02x}:00.0"
        host.add_gpu(card, "10de", "2235", totalvfs=VFS_OF_CARD)
        functions = vgpu.add_functions(host, card, VFS_OF_CARD)
        names = {int(vgpu_type.id.partition("-")[2]): vgpu_type.name or "" for vgpu_type in types()}
        for function in functions:
            if mediated:
                vgpu.add_types(host, function, types())
            else:
                vgpu.set_profiles(host, function, names)
        if mediated:
            vgpu.make(host, functions[0], "nvidia-557")
            vgpu.set_available(host, functions[0], {vgpu_type.id: 0 for vgpu_type in types()})
        else:
            vgpu.set_profiles(host, functions[0], names, current=557)
    return host


def cards(host: hosts.Host) -> tuple[model.GPU, ...]:
    return discovery.discover(host.roots, selection.Selection.parse(["10de"], [], []), {}, dict)


def read(files: Sequence[tuple[str, str]]) -> None:
    for folder, name in files:
        if name.startswith("virtfn"):
            sysfs.link(folder, name)
        else:
            sysfs.attribute(folder, name)


def rows(root: pathlib.Path, runs: int, count: int) -> list[report.Row]:
    table = []
    for name, mediated in (("mediated devices", True), ("profiles", False)):
        host = generate(root / name, count, mediated=mediated)
        # A figure for a look that misses something would say nothing.
        there = cards(host)
        free = sum(
            number
            for card in division.divided(there, host.roots).values()
            for parent in card.parents.values()
            for number in parent.available.values()
        )
        if free != count * (VFS_OF_CARD - 1) * TYPES:
            raise SystemExit(f"{free} vGPUs can be made by that look")
        files = [(str(path.parent), path.name) for path in vgpu.files(host)]
        title = f"{count} cards, {TYPES} types, {VFS_OF_CARD} VFs: {name}, {len(files)} files"
        look = functools.partial(division.divided, there, host.roots)
        ours, other = timing.medians_ms(
            [look, functools.partial(read, files)], runs, time.thread_time
        )
        table.append(report.Row(title, ours, other, "ms"))
    return table


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=20, help="how often each is timed")
    parser.add_argument("--cards", type=int, default=CARDS, help="how many cards the host has")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nova-gpu-") as root:
        table = rows(pathlib.Path(root), arguments.runs, arguments.cards)
    report.show(table, as_json=arguments.json, notes=NOTES)


if __name__ == "__main__":
    main()
