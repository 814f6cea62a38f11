# SPDX-License-Identifier: Apache-2.0
"""The command line of ``nova-gpu``.

``module`` is the module of a command, below this package; its ``run`` takes the command and the
program's command line, and returns the exit status.
"""

from __future__ import annotations

from typing import Any

from nova_gpu.cmd.output import add_format

# The exporter's default: this host only, because the metrics name instances.
LISTEN = "127.0.0.1:9943"


def add_commands(subparsers: Any) -> None:
    """Add the commands of ``nova-gpu`` with their options.

    :param subparsers: argparse's object that they are added to
    """
    listing = subparsers.add_parser(
        "list", help="list this host's GPUs, whether each is offered to instances, and why not"
    )
    listing.set_defaults(module="cards")
    add_format(listing)
    shown = subparsers.add_parser(
        "show", help="show all facts about one GPU; exits 1 if there is no such GPU"
    )
    shown.set_defaults(module="show")
    shown.add_argument("address", metavar="ADDRESS", help="PCI address, such as 0000:88:00.0")
    add_format(shown)
    topology = subparsers.add_parser(
        "topology",
        help="draw where the GPUs are (NUMA nodes, PCI roots, switches), which links join them, "
        "and which instance has which",
    )
    topology.set_defaults(module="topology")
    add_format(topology)
    metrics = subparsers.add_parser("exporter", help="serve metrics of the cards for Prometheus")
    metrics.set_defaults(module="exporter")
    metrics.add_argument(
        "--listen",
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help="address to listen at (default: %(default)s, as the metrics name instances)",
    )
    metrics.add_argument("--once", action="store_true", help="print the metrics once and exit")
    check = subparsers.add_parser(
        "verify",
        help="compare what sysfs, libvirt, Nova's database and Placement say of this host's GPUs; "
        "exits 1 if they differ, 3 if one of them does not answer",
    )
    check.set_defaults(module="verify")
    add_format(check)
    check.add_argument(
        "--repair", action="store_true", help="write to Placement what the instances have"
    )
    host = subparsers.add_parser("host", help="check or prepare this host's cards for KVM guests")
    _add_host_commands(host.add_subparsers(dest="verb", required=True))
    parser = subparsers.add_parser(
        "quarantine", help="list or release the cards that new instances do not get"
    )
    parser.set_defaults(module="quarantine")
    _add_quarantine_commands(parser.add_subparsers(dest="verb", required=True))


def _add_host_commands(subparsers: Any) -> None:
    check = subparsers.add_parser(
        "check",
        help="report for each card why guests cannot have it, and the remedy; exits 1 if there is "
        "such a card",
    )
    check.set_defaults(module="host_check")
    add_format(check)
    prepare = subparsers.add_parser(
        "prepare",
        help="print the files that make the host bind the cards to vfio-pci at boot",
    )
    prepare.set_defaults(module="host_prepare")
    what = prepare.add_mutually_exclusive_group()
    what.add_argument("--apply", action="store_true", help="write the files")
    what.add_argument("--undo", action="store_true", help="remove the files that --apply wrote")
    prepare.add_argument(
        "--root", default="/", metavar="DIR", help="write below this folder (default: %(default)s)"
    )


def _add_quarantine_commands(subparsers: Any) -> None:
    listing = subparsers.add_parser(
        "list", help="list the cards in quarantine, why they are there and what to do"
    )
    add_format(listing)
    releasing = subparsers.add_parser(
        "release", help="offer a card to new instances again, from nova-compute's next period on"
    )
    releasing.add_argument("address", metavar="ADDRESS", help="such as 0000:88:00.0")
