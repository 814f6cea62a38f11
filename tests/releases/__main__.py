# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.releases REVISION [KIND ...]``: that release, this one, and both again.

On one host of each kind, in which they find databases, guests and files as the other left them.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from lab import packages
from tests.releases import stays

_ROOT = pathlib.Path(__file__).parents[2]
KINDS = ("Containers", "Cards", "Mediated", "Typed", "Functions")
# What both releases run of this one
_SHARED = ("tests/releases", "tests/functional/former.py")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    parser.add_argument("revision", metavar="REVISION", help="the former release")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nova-gpu-releases-") as folder:
        packages.install(("git",), pathlib.Path(folder, "apt.log"))
        tree = pathlib.Path(folder, "former")
        _take_out(arguments.revision, tree)
        done = [
            _passes(kind, tree, pathlib.Path(folder, kind)) for kind in arguments.kinds or KINDS
        ]
    return 0 if all(done) else 1


def _take_out(revision: str, tree: pathlib.Path) -> None:
    tree.mkdir()
    git = ["git", "-c", f"safe.directory={_ROOT}", "-C", str(_ROOT), "archive", revision]
    archive = subprocess.run(git, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={tree}"], input=archive, check=True)
    for name in _SHARED:
        if (source := _ROOT / name).is_dir():
            shutil.copytree(source, tree / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, tree / name)


def _passes(kind: str, former: pathlib.Path, cloud: pathlib.Path) -> bool:
    cloud.touch()
    for release, tree in (("former", former), ("this", _ROOT)) * 2:
        began = time.monotonic()
        environment = {**os.environ, "PYTHONPATH": str(tree), "OS_TEST_TIMEOUT": "0"}
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "testtools.run", f"tests.releases.stays.{kind}"],
            cwd=tree,
            env={**environment, stays.CLOUD: str(cloud)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        verdict = "FAILED" if ended.returncode else "ok"
        print(
            f"{kind}, {release} release ... {verdict} ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        if ended.returncode:
            print(ended.stdout[-20000:])
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
