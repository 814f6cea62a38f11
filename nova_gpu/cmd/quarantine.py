# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu quarantine``: lists cards in quarantine, which new instances do not get; ends it."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any

from nova_gpu.cmd import this_host
from nova_gpu.cmd.output import Format, print_json
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine


def run(command: Any, _: list[str]) -> int:
    """Run ``nova-gpu quarantine list`` or ``release``; return the exit status."""
    folder = this_host.discover().quarantine
    if command.verb == "release":
        return release(folder, command.address)
    return listed(folder, as_json=command.format == Format.JSON)


def listed(folder: pathlib.Path, *, as_json: bool) -> int:
    """Print the cards in quarantine, with reasons and remedies; return 0, even without any."""
    entries = [entry for entry in quarantine.load(folder).values() if not entry.cleaning]
    if as_json:
        print_json(
            [{**dataclasses.asdict(entry), "address": str(entry.address)} for entry in entries]
        )
    elif entries:
        print("\n".join(map(_described, entries)))
    else:
        print("No card is in quarantine.")
    return 0


def release(folder: pathlib.Path, address: str) -> int:
    """End a card's quarantine; return 0, or 1 if the card is not in quarantine."""
    entry = quarantine.release(folder, PciAddress.parse(address))
    if entry is None:
        print(f"nova-gpu: GPU {address} is not in quarantine.", file=sys.stderr)
        return 1
    print(f"Released: {_described(entry)}")
    return 0


def _described(entry: quarantine.Entry) -> str:
    product = f" ({entry.product})" if entry.product else ""
    return f"{entry.address}{product}: since {entry.since}: {entry.reason}; {entry.remedy}"
