# SPDX-License-Identifier: Apache-2.0
"""User nova, and what it may do as root: what Nova's installation guide gives it, no more."""

from __future__ import annotations

import pathlib
import pwd
import subprocess

from tools.novalab import settings, steps

_SUDOERS = pathlib.Path("/etc/sudoers.d")


def _sudoers(lab: settings.Lab) -> pathlib.Path:
    return _SUDOERS / lab.tag


def create(lab: settings.Lab) -> None:
    """Makes the user, unless there is one, and the file for sudo."""
    log = lab.log / "account.log"
    try:
        pwd.getpwnam(settings.USER)
    except KeyError:
        # The tag as the comment tells `down` whose user it is.
        argv = ["useradd", "--system", "--user-group", "--no-create-home", "--comment", lab.tag]
        argv += ["--home-dir", str(lab.state), "--shell", "/usr/sbin/nologin", settings.USER]
        steps.run(argv, log)
    rootwrap = f"{lab.program('nova-rootwrap')} {lab.etc}/nova/rootwrap.conf"
    _SUDOERS.mkdir(mode=0o750, exist_ok=True)
    file = _sudoers(lab)
    file.touch(0o440)
    file.write_text(
        f"Defaults:{settings.USER} !requiretty, "
        f'secure_path="{lab.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n'
        f"{settings.USER} ALL = (root) NOPASSWD: {rootwrap} *\n"
    )
    steps.run(["visudo", "--check", "--quiet", "--file", str(file)], log)


def remove(lab: settings.Lab) -> list[str]:
    """Removes both, if they are the lab's; returns what could not be, in words."""
    _sudoers(lab).unlink(missing_ok=True)
    if not is_ours(lab):
        return []
    result = subprocess.run(["userdel", settings.USER], capture_output=True, text=True, check=False)
    return [f"user {settings.USER}: {result.stderr.strip()}"] if result.returncode else []


def is_ours(lab: settings.Lab) -> bool:
    """Whether there is a user nova that this lab made."""
    try:
        return pwd.getpwnam(settings.USER).pw_gecos == lab.tag
    except KeyError:
        return False


def found(lab: settings.Lab) -> list[str]:
    """What of it is there, in words."""
    files = [f"file {_sudoers(lab)}"] if _sudoers(lab).exists() else []
    return files + ([f"user {settings.USER}"] if is_ours(lab) else [])
