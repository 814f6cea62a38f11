# SPDX-License-Identifier: Apache-2.0
"""The command line of ``nova-gpu``."""

from __future__ import annotations

from typing import Any

from nova_gpu.cmd import quarantine
from nova_gpu.cmd.output import add_format

# Of the exporter: to this host alone, as the metrics name instances.
LISTEN = "127.0.0.1:9943"


def add_commands(subparsers: Any) -> None:
    """Add the commands.

    :param subparsers: of argparse
    """
    listing = subparsers.add_parser(
        "list", help="list this host's GPUs, whether each is offered to instances, and why not"
    )
    add_format(listing)
    shown = subparsers.add_parser(
        "show", help="say all that is known of one GPU; exits 1 where there is none"
    )
    shown.add_argument("address", metavar="ADDRESS", help="such as 0000:88:00.0")
    add_format(shown)
    topology = subparsers.add_parser(
        "topology",
        help="draw where the GPUs are (NUMA nodes, PCI roots, switches), what joins them, and on a "
        "host which instance has which",
    )
    add_format(topology)
    metrics = subparsers.add_parser("exporter", help="serve metrics of the cards for Prometheus")
    metrics.add_argument(
        "--listen",
        default=LISTEN,
        metavar="ADDRESS:PORT",
        help="where to listen, by default %(default)s: the metrics name instances",
    )
    metrics.add_argument("--once", action="store_true", help="print them once instead")
    check = subparsers.add_parser(
        "verify",
        help="compare what sysfs, libvirt, Nova's database and Placement say of this host's GPUs; "
        "exits 1 where they differ, 3 where one of them does not answer",
    )
    add_format(check)
    check.add_argument(
        "--repair", action="store_true", help="correct Placement to what instances have"
    )
    host = subparsers.add_parser("host", help="check or prepare this host's cards for KVM guests")
    _add_host_commands(host.add_subparsers(dest="verb", required=True))
    kept = subparsers.add_parser(
        "quarantine", help="list or release the cards that no new instance is given"
    )
    quarantine.add_commands(kept.add_subparsers(dest="verb", required=True))


def _add_host_commands(subparsers: Any) -> None:
    check = subparsers.add_parser(
        "check",
        help="say of each card what keeps it from guests, and what to do; exits 1 if anything does",
    )
    add_format(check)
    prepare = subparsers.add_parser(
        "prepare",
        help="print the files by which the host binds the cards to vfio-pci when it boots",
    )
    what = prepare.add_mutually_exclusive_group()
    what.add_argument("--apply", action="store_true", help="write them")
    what.add_argument("--undo", action="store_true", help="remove what --apply wrote")
    prepare.add_argument(
        "--root", default="/", metavar="DIR", help="write below this folder instead of /"
    )
