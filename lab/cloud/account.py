# SPDX-License-Identifier: Apache-2.0
"""User nova, as which all of the lab but libvirtd runs."""

from __future__ import annotations

import pwd
import subprocess

from lab.cloud import settings, steps


def create(lab: settings.Lab) -> None:
    """Make the user, unless there is one."""
    try:
        pwd.getpwnam(settings.USER)
    except KeyError:
        # The tag as the comment tells `down` whose user it is.
        argv = ["useradd", "--system", "--user-group", "--no-create-home", "--comment", lab.tag]
        argv += ["--home-dir", str(lab.state), "--shell", "/usr/sbin/nologin", settings.USER]
        steps.run(argv, lab.log / "account.log")


def remove(lab: settings.Lab) -> list[str]:
    """Remove the user, if it is the lab's; returns why it could not, in words."""
    if not is_ours(lab):
        return []
    result = subprocess.run(["userdel", settings.USER], capture_output=True, text=True, check=False)
    return [f"user {settings.USER}: {result.stderr.strip()}"] if result.returncode else []


def is_ours(lab: settings.Lab) -> bool:
    """Return whether there is a user nova that this lab made."""
    try:
        return pwd.getpwnam(settings.USER).pw_gecos == lab.tag
    except KeyError:
        return False
