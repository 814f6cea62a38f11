# SPDX-License-Identifier: Apache-2.0
"""Runs commands of OpenStack's clients in the lab, and prints them with their output."""

from __future__ import annotations

import os
import shlex
import subprocess

from lab.cloud import catalog, settings, steps

# The options of `flavor create` for a small instance
SIZE = ("--vcpus", "1", "--ram", "256", "--disk", "1")


def openstack(lab: settings.Lab, user: str, *words: str, succeeds: bool = True) -> str:
    return run(lab, user, "openstack", *words, succeeds=succeeds)


def boot(lab: settings.Lab, name: str, flavor: str, succeeds: bool = True) -> str:
    """Create an instance as the user demo, wait until it is built, and return the output."""
    words = ["--flavor", flavor, "--image", catalog.IMAGE, "--nic", "none", "--wait"]
    words = ["server", "create", *words, "-c", "name", "-c", "status", name]
    return openstack(lab, settings.MEMBER, *words, succeeds=succeeds)


def run(
    lab: settings.Lab,
    user: str,
    program: str,
    *words: str,
    succeeds: bool = True,
    last: int | None = None,
) -> str:
    """Run a client's *program* as the cloud's *user*, and print the command and its output.

    :param last: how many lines at the end are printed; ``None`` for all
    """
    command = f"{program} {' '.join(quoted(word) for word in words)}"
    steps.say(f"{user}$ {command}")
    environment = {**os.environ, **lab.environment(), **lab.credentials(user)}
    result = subprocess.run(
        [lab.program(program), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    lines = (result.stdout + result.stderr).splitlines()
    if last is not None and len(lines) > last:
        lines = ["...", *lines[-last:]]
    for line in lines:
        steps.say(f"  {line}")
    if succeeds and result.returncode:
        raise steps.Failed(f"`{command}` ended with status {result.returncode}")
    if not succeeds and not result.returncode:
        raise steps.Failed(f"`{command}` succeeded, and should have been refused")
    return result.stdout + result.stderr


def quoted(word: str) -> str:
    """Return an argument quoted for a shell, of a property only the value: gpus='= 2'."""
    name, equals, value = word.partition("=")
    if equals and name.isidentifier():
        return f"{name}={shlex.quote(value)}"
    return shlex.quote(word)
