# SPDX-License-Identifier: Apache-2.0
"""Prints a recording of this host's cards, for bug reports and for the tests.

::

    python -m lab.record [--config-file FILE] > host.yaml

Run it from a checkout with Nova's Python, as root: NVML tells other users less about a host's
vGPUs.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Collection, Iterator, Sequence

import yaml

from lab.record import recording
from nova_gpu.cmd import options
from nova_gpu.cmd.output import NO_CARDS
from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import GPU
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.state import files
from nova_gpu.virt.inventory import discovery

# The options that determine how a host is read. Others may contain an operator's own path or
# command.
_OPTIONS = ("vendors", "product_ids", "product", "link_groups", "nvml", "guest_mmio_gib")
# "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build  (root@host)":
# the kind of modules and their release, without the place where they were built.
_DRIVER = re.compile(r"NVIDIA UNIX [\w ]+? +[0-9]+(?:\.[0-9]+)+")


def show(host: discovery.Discovery) -> int:
    """Print the recording of *host*, and return the exit status: 1 if it has no card, else 0."""
    gpus = host.find()
    if not gpus:
        print(f"lab.record: {NO_CARDS}", file=sys.stderr)
        return 1
    print("\n".join(f"# {line}" for line in _heading(host)))
    recorded = recording.record(gpus, host.roots)
    try:
        recorded["nvml"] = _nvml(gpus)
    except nvml.NoAnswer as error:
        print(f"# NVML tells nothing: {error}")
    for kind, entries in recorded.items():
        if entries:
            print(f"{kind}:")
        for entry in entries:
            text = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000)
            print(f"  - {text.strip()}")
    for gpu in gpus:
        for link in gpu.links:
            print(f"# {gpu.address} has {link.width} {link.type} to {link.peer}")
    return 0


def _heading(host: discovery.Discovery) -> Iterator[str]:
    yield "A host for tests/fixtures/machines, by lab.record."
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("nova-gpu", "nova")]
    yield f"{', '.join(versions)}, kernel {platform.release()}"
    yield from _driver(host)
    yield f"[libvirt]virt_type = {CONF.libvirt.virt_type}"
    for name in _OPTIONS:
        yield f"[gpu]{name} = {CONF.gpu[name]}"


def _nvml(gpus: Collection[GPU]) -> list[dict[str, object]]:
    """Return a recording of NVML's answers about the cards of NVIDIA's driver.

    It is empty without such a card, or if [gpu]nvml is false.
    """
    held = [gpu.address for gpu in gpus if gpu.driver == nvml.DRIVER]
    if not (held and CONF.gpu.nvml):
        return []
    return recording.record_nvml(held, CONF.gpu.nvml_timeout)


def _driver(host: discovery.Discovery) -> Iterator[str]:
    """Yield the name and version of NVIDIA's driver, nothing if it is not loaded."""
    try:
        text = files.read(host.roots.proc / "driver/nvidia/version")
    except (OSError, ValueError):
        return
    if match := _DRIVER.search(text):
        yield match[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Read the configuration files, print the recording, and return the exit status."""
    try:
        options.read((sys.argv if argv is None else argv)[1:], "python -m lab.record")
        return show(discovery.Discovery())
    except (exception.GPUError, *options.Unreadable) as error:
        print(f"lab.record: {options.message(error)}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
