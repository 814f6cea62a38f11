# SPDX-License-Identifier: Apache-2.0
"""Finding the GPUs of a generated host with 16 GPUs and 512 VFs.

python -m benchmarks.discovery [--json]
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import nodedev, report, timing
from nova_gpu.host.pci import discovery, selection
from tests.fixtures import hosts

GPUS = 16
VFS_OF_GPU = 32

NOTES = (
    "Listing: the median of the runs, one process, a generated tree in a temporary folder. Ours",
    "reads sysfs and finds the whole cards. Nova's, LibvirtDriver._get_pci_passthrough_devices of",
    "the installed release, makes a record of every function; its libvirt is a stand-in that has",
    "each device's XML ready, so the time libvirt itself takes is missing from Nova's figure.",
    "Nova does it once and keeps the result until nova-compute restarts; ours sees what changes.",
    "Memory: resident, of a process that imports what nova-compute does, with our driver and one",
    "discovery, and with Nova's libvirt driver.",
)

# What is loaded in the process whose memory is taken. NVML runs in a process of its own.
_STOCK = "import nova.cmd.compute, nova.compute.manager, nova.virt.libvirt.driver"
_OURS = """
import pathlib, nova_gpu.virt.driver
from nova_gpu.host import roots
from nova_gpu.host.pci import discovery, selection
chosen = selection.Selection.parse(["10de", "1002", "8086"], [], [])
gpus = discovery.discover(roots.Roots(sysfs=pathlib.Path({sysfs!r})), chosen, {{}}, dict)
assert len(gpus) == {gpus}, gpus
"""
_RESIDENT = """
import gc, json; gc.collect()
print(json.dumps([line.split()[1] for line in open("/proc/self/status") if "VmRSS" in line]))
"""


def generate(root: pathlib.Path) -> hosts.Host:
    """Each card on a bus of its own, with its VFs behind it as the kernel numbers them."""
    host = hosts.Host(root)
    for number in range(GPUS):
        bus = 0x10 + 8 * number
        card = f"0000:{bus:02x}:00.0"
        host.add_gpu(card, "10de", "2335", numa_node=number * 2 // GPUS, totalvfs=VFS_OF_GPU)
        for index in range(4, 4 + VFS_OF_GPU):
            host.add_vf(card, f"0000:{bus:02x}:{index >> 3:02x}.{index & 7}", "2335")
    return host


def discover(host: hosts.Host) -> int:
    chosen = selection.Selection.parse(["10de", "1002", "8086"], [], [])
    return len(discovery.discover(host.roots, chosen, {}, dict))


def resident_mb(program: str) -> float:
    """The memory of a fresh interpreter after *program*, in units of 10^6 bytes"""
    printed = subprocess.run(
        [sys.executable, "-c", program + _RESIDENT], check=True, stdout=subprocess.PIPE
    ).stdout
    (kib,) = json.loads(printed)
    return int(kib) * 1024 / 1e6


def rows(root: pathlib.Path, runs: int) -> list[report.Row]:
    host = generate(root)
    nova = nodedev.listing(host.devices)
    functions = GPUS * (1 + VFS_OF_GPU)
    # A figure for a listing that misses something would say nothing.
    if (counts := (discover(host), len(nova()))) != (GPUS, functions):
        raise SystemExit(f"found {counts} instead of {GPUS} GPUs and {functions} functions")
    (ours_ms,) = timing.medians_ms([lambda: discover(host)], runs, time.perf_counter)
    (nova_ms,) = timing.medians_ms([nova], max(runs // 10, 3), time.perf_counter)
    listing = report.Row(f"list {GPUS} GPUs and {GPUS * VFS_OF_GPU} VFs", ours_ms, nova_ms, "ms")
    stock = resident_mb(_STOCK)
    ours = resident_mb(_STOCK + _OURS.format(sysfs=str(host.roots.sysfs), gpus=GPUS))
    return [
        listing,
        report.Row("memory of nova-compute", ours, stock, "MB"),
        report.Row("memory the driver adds", ours - stock, None, "MB"),
    ]


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--runs", type=int, default=50, help="how often ours is timed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nova-gpu-") as root:
        report.show(rows(pathlib.Path(root), arguments.runs), as_json=arguments.json, notes=NOTES)


if __name__ == "__main__":
    main()
