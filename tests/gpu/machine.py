# SPDX-License-Identifier: Apache-2.0
"""The machine with the card: what other programs say of it, and where it is kept."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess
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


def obstacle(roots: Roots = ROOTS) -> str | None:
    """Why nothing of it can be tried on this machine, ``None`` where it can"""
    if not (roots.sysfs / "bus/pci/devices").is_dir():
        return "needs a real GPU: this kernel shows no PCI bus in sysfs"
    found = _discover(roots, {})
    held = [gpu for gpu in found if gpu.driver == nvml.DRIVER]
    if not held:
        others = f", only {found[0].address} of {found[0].product.vendor_id}" if found else ""
        return f"needs a real GPU that NVIDIA's driver holds: there is none{others}"
    if not shutil.which("nvidia-smi"):
        return "needs a real GPU and nvidia-smi, to compare with: it is not on PATH"
    return None


def _discover(roots: Roots, facts: dict[PciAddress, nvml.NvmlFacts]) -> tuple[GPU, ...]:
    return discovery.discover(roots, _ALL, {}, lambda: facts)


def seen(folder: pathlib.Path) -> None:
    """What is said from now on is kept in *folder*, which has nothing of an earlier run."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ[_FOLDER] = str(folder)


def keep(name: str, text: bytes | str) -> None:
    if folder := os.environ.get(_FOLDER):
        content = text.encode() if isinstance(text, str) else text
        pathlib.Path(folder, name).write_bytes(content)


def said(name: str, command: Sequence[str]) -> bytes:
    """What a program of the machine prints, kept as *name*

    :raises subprocess.SubprocessError: where it fails
    """
    environ = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, env=environ
    )
    keep(name, done.stdout + done.stderr if done.returncode else done.stdout)
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
