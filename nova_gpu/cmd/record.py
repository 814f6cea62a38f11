# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu record``"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator

import yaml

from nova_gpu.cmd import cards
from nova_gpu.conf import CONF
from nova_gpu.host import recording
from nova_gpu.virt.inventory import survey

# Those that say how a host is read. Others may have a path or a command of somebody's own.
_OPTIONS = ("vendors", "product_ids", "product", "linked", "nvml", "guest_mmio_gib")


def main(looked: survey.Survey) -> int:
    """:returns: 0, or 1 where there is no card
    :raises DiscoveryFailed: where the host's cards cannot be listed
    """
    gpus = looked.find()
    if not gpus:
        print(f"nova-gpu: {cards.NONE}", file=sys.stderr)
        return 1
    print("\n".join(f"# {line}" for line in _heading(looked)))
    recorded = recording.record(gpus, looked.roots)
    for kind, entries in recorded.items():
        if entries:
            print(f"{kind}:")
        for entry in entries:
            print(f"  - {_flow(entry)}")
    for gpu in gpus:
        for link in gpu.links:
            print(f"# {gpu.address} has {link.width} {link.type} to {link.peer}")
    return 0


def _heading(looked: survey.Survey) -> Iterator[str]:
    yield "A host for tests/fixtures/machines, by nova-gpu record."
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("nova-gpu", "nova")]
    yield f"{', '.join(versions)}, kernel {platform.release()}"
    yield f"[libvirt]virt_type = {CONF.libvirt.virt_type}"
    for name in _OPTIONS:
        yield f"[gpu]{name} = {CONF.gpu[name]}"


def _flow(entry: dict[str, object]) -> str:
    text: str = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000)
    return text.strip()
