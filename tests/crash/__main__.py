# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash``: kills nova-compute and looks whether every GPU is where it belongs.

With --points, run as root: a libvirtd of its own, with its LXC driver and pretend GPUs;
nova-compute is a process of its own, and the rest of the cloud another. nova-compute is killed
(SIGKILL) while it creates, reboots, resizes or deletes an instance, and started again. Then sysfs,
libvirt's domains, instance.resources and Placement are compared, and what the pool would give to
the next one.

With --takeovers: nova-gpu adopt and leave are killed while they write, with Nova in one process and
a fake libvirt; instances go on meanwhile, and the commands too.

With --operations: many create and delete instances at once, with Nova in one process and a fake
libvirt; the same is compared after each round of 24.

It prints stestr's lines; each point is a test.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.lxc import outside
from tools import outcomes

# As the tests of tests/functional read them: by option, their module
_MODULES = {
    "operations": "test_concurrency",
    "takeovers": "test_takeover_crashes",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--points", type=int, default=1000, help="deaths (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another order")
    parser.add_argument(
        "-k", dest="pattern", default="", help="only lives in one of whose deaths' names this is"
    )
    parser.add_argument("--operations", type=int, help="operations at once, in place of deaths")
    parser.add_argument("--takeovers", type=int, help="deaths of nova-gpu adopt and leave instead")
    arguments = parser.parse_args()
    for name in _MODULES:
        if number := getattr(arguments, name):
            return _functional(name, number, arguments.seed)
    if reason := outside.obstacle():
        print(f"SKIP: {reason}")
        return outcomes.SKIPPED
    # All deaths are one test to Nova's test base.
    os.environ.pop("OS_TEST_TIMEOUT", None)
    words = str(arguments.points), str(arguments.seed), arguments.pattern
    return outside.run("tests.crash.inside", *words)


def _functional(name: str, number: int, seed: int) -> int:
    more = {f"NOVA_GPU_{name.upper()}": str(number), "NOVA_GPU_SEED": str(seed)}
    more |= {"OS_TEST_TIMEOUT": "0"}
    argv = [sys.executable, "-W", "ignore", "-m", "unittest", f"tests.functional.{_MODULES[name]}"]
    done = subprocess.run(argv, env={**os.environ, **more}, stdout=subprocess.DEVNULL)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
