# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.matrix``: what goes wrong with instances with GPUs in walks nobody wrote.

A walk is an instance in a cloud of two hosts and a few operations on it. After the last one each
host has its periods, and Nova's database, Placement, libvirt and sysfs are compared. Without
options a sample of all pairs of values of two axes is tried, with some calls that go wrong, and
what is recorded in recorded.yaml.

``python -m tests.matrix tenants`` lets hypothesis choose: several instances of one project, and
operators whose hosts die and come back.

It prints stestr's lines; each walk is a test.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

_SAMPLE_S, _FOREVER_S = 120, 10**6


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("walks", nargs="*", help="their names: only these; or tenants")
    text = f"until no walk begins; by default {_SAMPLE_S} of a sample, else as many as it takes"
    parser.add_argument("--seconds", type=float, help=text)
    parser.add_argument("--seed", type=int, help="by default another one each time")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--kind", action="append", help="only clouds of this kind")
    parser.add_argument("-k", dest="pattern", default="", help="only walks with this in their name")
    parser.add_argument(
        "--explore", action="store_true", help="of a walk that is named: each in its setup"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pairs", action="store_true", help="all pairs, however long it takes")
    what.add_argument("--calls", action="store_true", help="each call of operations goes wrong")
    what.add_argument(
        "--triples", action="store_true", help="each operation in each state that is found"
    )
    what.add_argument("--list", action="store_true", help="print the names of all pairs")
    tenants = parser.add_argument_group("tenants")
    text = "let them act in each cloud after its walks, too"
    tenants.add_argument("--with-tenants", action="store_true", help=text)
    tenants.add_argument("--steps", type=int, default=45, help="of each (default: %(default)s)")
    tenants.add_argument("--seeds", type=int, default=18, help="so many (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if arguments.seconds is None:
        is_whole = arguments.walks or arguments.pairs or arguments.calls
        arguments.seconds = _FOREVER_S if is_whole else _SAMPLE_S
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    from tests.matrix import run  # it imports Nova, whose output goes to standard error

    return run.main(arguments, seed)


if __name__ == "__main__":
    from tests.cloud import running

    running.leave(main)
