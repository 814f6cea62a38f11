# SPDX-License-Identifier: Apache-2.0
"""The machine's user nova, as which all processes of the lab except libvirtd run."""

from __future__ import annotations

import pwd
import subprocess

from lab.cloud import settings, steps


def create(lab: settings.Lab) -> None:
    """Create the user nova, unless the machine has one."""
    try:
        pwd.getpwnam(settings.USER)
    except KeyError:
        # The user's comment contains the tag, by which `down` recognises the lab's user.
        argv = ["useradd", "--system", "--user-group", "--no-create-home", "--comment", lab.tag]
        argv += ["--home-dir", str(lab.state), "--shell", "/usr/sbin/nologin", settings.USER]
        steps.run(argv, lab.log / "account.log")


def remove(lab: settings.Lab) -> list[str]:
    """Remove the user nova if this lab created it; return why that failed, or an empty list."""
    if not is_ours(lab):
        return []
    result = subprocess.run(["userdel", settings.USER], capture_output=True, text=True, check=False)
    return [f"user {settings.USER}: {result.stderr.strip()}"] if result.returncode else []


def is_ours(lab: settings.Lab) -> bool:
    """Return whether this lab has created the user nova."""
    try:
        return pwd.getpwnam(settings.USER).pw_gecos == lab.tag
    except KeyError:
        return False
