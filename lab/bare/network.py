# SPDX-License-Identifier: Apache-2.0
"""A network namespace for a bare root, with a way out through slirp4netns.

The ports of a root are its own then, so that any number of clouds run at the same time. Connections
from the root are made by slirp4netns on this machine, with this machine's routes and resolvers.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator

PACKAGE = "slirp4netns"
# Of the addresses for measurements (RFC 2544), which no network has, nor QEMU's in a guest
_CIDR, MACHINE, _RESOLVER = "198.18.0.0/24", "198.18.0.2", "198.18.0.3"
_INTERFACE = "tap0"
_LOOPBACK = re.compile(r"(?<=//)(?:127\.0\.0\.1|localhost)(?=[:/]|$)|(?<=//)\[::1\](?=[:/]|$)")
_NAMESERVER = re.compile(r"^nameserver\b.*\n?", re.MULTILINE)
_PATIENCE_S = 20.0
# A shell's line that waits until the default route is there, which is the last that is set
WAIT = f"until grep -q '^{_INTERFACE}.00000000' /proc/net/route; do sleep 0.05; done"


class NetworkFailed(Exception):
    """The error that a network namespace got no way out, and why."""


def obstacle() -> str | None:
    """Return why a root cannot have a network of its own here, ``None`` if it can."""
    if not shutil.which(PACKAGE):
        return f"{PACKAGE} is not on PATH"
    with subprocess.Popen(["unshare", "--net", "sleep", "60"], stderr=subprocess.DEVNULL) as trial:
        try:
            with attached(trial.pid):
                return None
        except NetworkFailed as error:
            return str(error)
        finally:
            trial.kill()


@contextlib.contextmanager
def attached(pid: int) -> Iterator[None]:
    """Give the network namespace that process *pid* is about to make a way out."""
    _wait_for_namespace(pid)
    reads, writes = os.pipe()
    # It ends with this process.
    argv = ["setpriv", "--pdeathsig", "KILL", "--", PACKAGE, "--configure", "--mtu=65520"]
    argv += [f"--cidr={_CIDR}", f"--ready-fd={writes}", str(pid), _INTERFACE]
    out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    child: subprocess.Popen[str] = subprocess.Popen(argv, pass_fds=(writes,), **out)  # type: ignore[call-overload]
    os.close(writes)
    try:
        with open(reads, "rb") as ready:
            if not ready.read(1):
                child.wait(_PATIENCE_S)
                assert child.stderr
                lines = child.stderr.read().strip().splitlines() or ["no reason given"]
                raise NetworkFailed(f"{PACKAGE} ended with {child.returncode}: {lines[-1]}")
        yield
    finally:
        child.kill()
        child.wait()
        if child.stderr:
            child.stderr.close()


def inside(text: str) -> str:
    """Return settings with an address by which this machine's loopback is reached in the root."""
    return _LOOPBACK.sub(MACHINE, text)


def resolv_conf(text: str) -> str:
    """Return a resolv.conf for the root, whose queries go to this machine's resolvers."""
    return f"{_NAMESERVER.sub('', text)}nameserver {_RESOLVER}\n"


def _wait_for_namespace(pid: int) -> None:
    own = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if os.readlink(f"/proc/{pid}/ns/net") != own:
                return
        except OSError as error:
            raise NetworkFailed(f"no network namespace was made: {error.strerror}") from error
        time.sleep(0.01)
    raise NetworkFailed("no network namespace was made")
