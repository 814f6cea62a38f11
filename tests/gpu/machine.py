# SPDX-License-Identifier: Apache-2.0
"""The machine with the card: what other programs say of it, and where it is kept."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import discovery, selection
from nova_gpu.host.roots import Roots
from tests.gpu import smi

ROOTS = Roots()
TIMEOUT_S = 60.0
_ALL = selection.Selection.parse(["10de", "1002", "8086"], [], [])
_FOLDER = "NOVA_GPU_SEEN"
# What is kept for a record, beside what the tests read
_FILES = (
    ("proc", "driver/nvidia/version"),
    ("proc", "driver/nvidia/gpus/*/information"),
    ("proc", "driver/nvidia/capabilities/*/mig/*/access"),
    ("proc", "driver/nvidia-caps/mig-minors"),
)
_PROGRAMS = {
    "topo.txt": ("nvidia-smi", "topo", "-m"),
    "remote.txt": ("nvidia-smi", "nvlink", "-R"),
    "regions.txt": ("lspci", "-vv", "-d", "10de:"),
    "kernel.txt": ("dmesg",),
}


def obstacle(roots: Roots = ROOTS) -> str | None:
    """Why nothing of it can be tried on this machine, ``None`` where it can"""
    if not (roots.sysfs / "bus/pci/devices").is_dir():
        return "needs a real GPU: this kernel shows no PCI bus in sysfs"
    gpus = _discover(roots, {})
    held = [gpu for gpu in gpus if gpu.driver == nvml.DRIVER]
    if not held:
        others = f", only {gpus[0].address} of {gpus[0].product.vendor_id}" if gpus else ""
        return f"needs a real GPU that NVIDIA's driver holds: there is none{others}"
    if not shutil.which("nvidia-smi"):
        return "needs a real GPU and nvidia-smi, to compare with: it is not on PATH"
    return None


def _discover(roots: Roots, facts: dict[PciAddress, nvml.NvmlFacts]) -> tuple[GPU, ...]:
    return discovery.discover(roots, _ALL, {}, lambda: facts)


def without_libvirt() -> None:
    """Where its binding is missing a stand-in is imported, here and by the commands that are run:
    what NVIDIA's driver shows is to be tried all the same."""
    if importlib.util.find_spec("libvirt"):
        return
    folder = str(pathlib.Path(__file__).with_name("without_libvirt"))
    sys.path.append(folder)
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([others] if others else []), folder])


def seen(folder: pathlib.Path) -> None:
    """What is said from now on is kept in *folder*, where nothing of an earlier run stays, and what
    else may become a record (tests/recorded)."""
    folder.mkdir(parents=True, exist_ok=True)
    for former in folder.iterdir():
        former.unlink()
    os.environ[_FOLDER] = str(folder)
    for root, pattern in _FILES:
        for path in sorted(getattr(ROOTS, root).glob(pattern)):
            with contextlib.suppress(OSError):
                keep("-".join(path.parts[2:]), path.read_bytes())
    for gpu in _discover(ROOTS, {}):
        path = ROOTS.sysfs / f"bus/pci/devices/{gpu.address}/resource"
        keep(f"resource-{gpu.address}", path.read_bytes())
    for name, command in _PROGRAMS.items():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said(name, command)


def keep(name: str, text: bytes | str) -> None:
    if folder := os.environ.get(_FOLDER):
        content = text.encode() if isinstance(text, str) else text
        pathlib.Path(folder, name.replace(":", "-")).write_bytes(content)


def said(name: str, command: Sequence[str], *, may_fail: bool = False) -> bytes:
    """What a program of the machine prints, kept as *name*"""
    environ = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, env=environ
    )
    keep(name, done.stdout + done.stderr if done.returncode else done.stdout)
    if not may_fail:
        done.check_returncode()
    return done.stdout


def smi_cards() -> dict[PciAddress, smi.Card]:
    """What nvidia-smi says of the cards now"""
    return {card.address: card for card in smi.read(said("smi.xml", ["nvidia-smi", "-q", "-x"]))}


@functools.cache
def facts() -> dict[PciAddress, nvml.NvmlFacts]:
    """What the probe says of the cards"""
    return dict(nvml.query(TIMEOUT_S))


@functools.cache
def all_gpus() -> tuple[GPU, ...]:
    """The cards as discovery has them"""
    return _discover(ROOTS, facts())


def gpus() -> tuple[GPU, ...]:
    """Those that NVIDIA's driver holds"""
    return tuple(gpu for gpu in all_gpus() if gpu.driver == nvml.DRIVER)
