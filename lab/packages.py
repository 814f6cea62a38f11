# SPDX-License-Identifier: Apache-2.0
"""Debian packages of this machine: finds those that are missing, and installs them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

# Two suites that run side by side may lack the same packages. apt waits for dpkg's lock, but an
# update of the lists does not wait for another.
_LOCK = Path("/run/lock/nova-gpu-apt")


class MachineNotReady(Exception):
    """The error that this machine lacks something that its administrator must add."""


def missing_packages(names: Sequence[str]) -> tuple[str, ...]:
    """Return the packages of *names* that dpkg does not report as installed.

    :raises MachineNotReady: if there is no dpkg
    """
    if not shutil.which("dpkg-query"):
        raise MachineNotReady(
            "this is no Debian: no dpkg-query on PATH. Install by hand the equivalents of "
            + " ".join(names)
        )
    answer = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *names],
        capture_output=True,
        text=True,
        check=False,  # it fails when it knows nothing of one name
    )
    installed = {
        package
        for package, _, status in (line.partition(" ") for line in answer.stdout.splitlines())
        if status == "installed"
    }
    return tuple(name for name in names if name not in installed)


def install(names: Sequence[str], log: Path) -> tuple[str, ...]:
    """Install the packages of *names* that are missing, and return their names.

    :raises MachineNotReady: if packages are missing and this user is not root, or apt fails
    """
    missing = missing_packages(names)
    if not missing:
        return ()
    if os.geteuid() != 0:
        raise MachineNotReady(
            f"packages are missing: run this as root, or apt-get install {' '.join(missing)}"
        )
    # Another apt may be at work (a provisioning script, the lab): wait for it.
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "-y"]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    log.parent.mkdir(parents=True, exist_ok=True)
    with _alone(), log.open("wb") as output:
        for command in (
            [*apt, "update"],
            [*apt, "install", "--no-install-recommends", *missing],
        ):
            code = subprocess.run(command, stdout=output, stderr=output, env=environ).returncode
            if code:
                raise MachineNotReady(f"{' '.join(command)} ended with status {code}; see {log}")
    return missing


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with _LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
