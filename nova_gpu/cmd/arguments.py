# SPDX-License-Identifier: Apache-2.0
"""The command line of ``nova-gpu``.

The parsed result has the attribute ``module``, the name of the module in this package that runs the
command. That module's ``run`` takes the parsed result and the command line, and returns the exit
status.
"""

from __future__ import annotations

from typing import Any

from nova_gpu.cmd.output import add_format

# The exporter's default: this host only, because the metrics name instances.
LISTEN = "127.0.0.1:9943"


def add_commands(subparsers: Any) -> None:
    """Add the parsers of all ``nova-gpu`` commands, with their options, to *subparsers*.

    :param subparsers: the result of ``argparse.ArgumentParser.add_subparsers``
    """
    listing = subparsers.add_parser(
        "list",
        help="list this host's GPUs, which of them are offered to new instances, and why "
        "others are not",
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
        help="print the tree of NUMA nodes, PCI roots and switches with the GPUs and their "
        "instances, and the links between GPUs",
    )
    topology.set_defaults(module="topology")
    add_format(topology)
    metrics = subparsers.add_parser(
        "exporter", help="serve metrics of this host's GPUs for Prometheus"
    )
    metrics.set_defaults(module="exporter")
    metrics.add_argument(
        "--listen",
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help="address to listen at; the default, %(default)s, serves this host only, because the "
        "metrics contain uuids of instances",
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
        "--repair",
        action="store_true",
        help="make allocations in Placement match the GPUs that instances have, where that is safe",
    )
    host = subparsers.add_parser("host", help="check or prepare this host's cards for KVM guests")
    _add_host_commands(host.add_subparsers(dest="verb", required=True))
    parser = subparsers.add_parser(
        "quarantine",
        help="list the cards in quarantine, which new instances do not get, or release one",
    )
    parser.set_defaults(module="quarantine")
    _add_quarantine_commands(parser.add_subparsers(dest="verb", required=True))


def _add_host_commands(subparsers: Any) -> None:
    check = subparsers.add_parser(
        "check",
        help="report for each card whether guests can have it, and if not, why and what to do; "
        "exits 1 if guests cannot have one of them",
    )
    check.set_defaults(module="host_check")
    add_format(check)
    prepare = subparsers.add_parser(
        "prepare",
        help="print the configuration files that make the host bind its cards to vfio-pci at boot",
    )
    prepare.set_defaults(module="host_prepare")
    what = prepare.add_mutually_exclusive_group()
    what.add_argument("--apply", action="store_true", help="write these files")
    what.add_argument("--undo", action="store_true", help="remove the files that --apply wrote")
    prepare.add_argument(
        "--root", default="/", metavar="DIR", help="write below this folder (default: %(default)s)"
    )


def _add_quarantine_commands(subparsers: Any) -> None:
    listing = subparsers.add_parser(
        "list", help="list the cards in quarantine, with the reason and what to do"
    )
    add_format(listing)
    releasing = subparsers.add_parser(
        "release",
        help="end a card's quarantine: nova-compute offers it to new instances again from its next "
        "period on",
    )
    releasing.add_argument("address", metavar="ADDRESS", help="PCI address, such as 0000:88:00.0")
