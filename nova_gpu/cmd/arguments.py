# SPDX-License-Identifier: Apache-2.0
"""The command line of ``nova-gpu``.

The parsed result has the attribute ``module``, the full name of the module that runs the command.
That module's ``run`` takes the parsed result and the command line, and returns the exit status.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from nova_gpu.cmd.output import add_format
from nova_gpu.core import extensions

# The exporter's default: this host only, because the metrics name instances.
LISTEN = "127.0.0.1:9943"
_WITHOUT_DOMAIN = re.compile("[0-9a-fA-F]{2}:[0-9a-fA-F]{2}[.][0-7]")


def add_command(
    subparsers: Any, name: str, module: str, text: str, *, formats: bool = True
) -> argparse.ArgumentParser:
    """Add and return the parser of the command *name*, which the module of this full name runs."""
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=text)
    parser.set_defaults(module=module)
    if formats:
        add_format(parser)
    return parser


def _address(text: str) -> str:
    """Complete a PCI address as ``lspci`` prints it on most hosts, without its domain."""
    return f"0000:{text}" if _WITHOUT_DOMAIN.fullmatch(text) else text


def add_address(parser: Any) -> None:
    text = "PCI address, such as 0000:88:00.0 or 88:00.0"
    parser.add_argument("address", metavar="ADDRESS", type=_address, help=text)


def add_commands(subparsers: Any) -> None:
    """Add the parsers of all ``nova-gpu`` commands, with their options, to *subparsers*."""

    def add(within: Any, name: str, module: str, text: str, *, formats: bool = True) -> Any:
        return add_command(within, name, f"nova_gpu.cmd.{module}", text, formats=formats)

    text = "list this host's GPUs, which of them are offered to instances, and why others are not"
    add(subparsers, "list", "cards", text)
    text = "show all facts about one GPU; exits 1 if there is no such GPU"
    add_address(add(subparsers, "show", "show", text))
    text = (
        "print the tree of NUMA nodes, PCI roots and switches with the GPUs and their instances, "
        "and the links between GPUs"
    )
    add(subparsers, "topology", "topology", text)
    text = "serve metrics of this host's GPUs for Prometheus"
    metrics = add(subparsers, "exporter", "exporter", text, formats=False)
    metrics.add_argument(
        "--listen",
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help="address to listen at; the default, %(default)s, serves this host only, because the "
        "metrics contain uuids of instances",
    )
    metrics.add_argument("--once", action="store_true", help="print the metrics once and exit")
    text = (
        "compare what sysfs, libvirt, Nova's database and Placement say of this host's GPUs; "
        "exits 1 if they differ, 3 if one of them does not answer"
    )
    add(subparsers, "verify", "verify", text).add_argument(
        "--repair",
        action="store_true",
        help="make allocations in Placement match the GPUs that instances have, where that is safe",
    )

    host = subparsers.add_parser("host", help="check or prepare this host's cards for KVM guests")
    verbs = host.add_subparsers(dest="verb", required=True)
    text = (
        "report for each card whether guests can have it, and if not, why and what to do; exits 1 "
        "if guests cannot have one of them"
    )
    add(verbs, "check", "host_check", text)
    text = "print the configuration files that make the host bind its cards to vfio-pci at boot"
    prepare = add(verbs, "prepare", "host_prepare", text, formats=False)
    what = prepare.add_mutually_exclusive_group()
    what.add_argument("--apply", action="store_true", help="write these files")
    what.add_argument("--undo", action="store_true", help="remove the files that --apply wrote")
    prepare.add_argument(
        "--root", default="/", metavar="DIR", help="write below this folder (default: %(default)s)"
    )

    text = "list the cards in quarantine, which new instances do not get, or release one"
    verbs = subparsers.add_parser("quarantine", help=text).add_subparsers(
        dest="verb", required=True
    )
    text = "list the cards in quarantine, with the reason and what to do"
    add(verbs, "list", "quarantine", text)
    text = (
        "end a card's quarantine: nova-compute offers it to new instances again, mostly within a "
    )
    add_address(add(verbs, "release", "quarantine", f"{text}minute", formats=False))

    for add_others in extensions.load("nova_gpu.commands"):
        add_others(subparsers)
