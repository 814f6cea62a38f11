# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu quarantine``: lists and releases the cards that no new instance is given."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from typing import Any

from nova_gpu.cmd.output import Format, add_format, print_json
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine


def add_commands(subparsers: Any) -> None:
    """Add the commands.

    :param subparsers: of argparse
    """
    listing = subparsers.add_parser(
        "list", help="list the cards in quarantine, why they are there and what to do"
    )
    add_format(listing)
    releasing = subparsers.add_parser(
        "release", help="have a card given to instances again, from the service's next period on"
    )
    releasing.add_argument("address", metavar="ADDRESS", help="such as 0000:88:00.0")


def main(folder: pathlib.Path, command: Any) -> int:
    """Run the verb that was given; returns the exit status.

    :param command: ``CONF.command``
    :raises OSError: where the folder cannot be read or changed
    :raises InvalidPciAddress: where the address is none
    """
    if command.verb == "release":
        return release(folder, command.address)
    return listed(folder, as_json=command.format == Format.JSON)


def listed(folder: pathlib.Path, *, as_json: bool) -> int:
    """Print the cards in quarantine; return 0, with cards or without."""
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
    """End a card's quarantine; return 0, or 1 where it is not in quarantine."""
    entry = quarantine.release(folder, PciAddress.parse(address))
    if entry is None:
        print(f"nova-gpu: GPU {address} is not in quarantine.", file=sys.stderr)
        return 1
    print(f"Released: {_described(entry)}")
    return 0


def _described(entry: quarantine.Entry) -> str:
    product = f" ({entry.product})" if entry.product else ""
    return f"{entry.address}{product}: since {entry.since}: {entry.reason}; {entry.remedy}"
