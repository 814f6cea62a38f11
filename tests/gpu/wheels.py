# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.gpu.wheels DIR [--python 3.12]``: collects the wheels for ``tools/test gpu``.

They are for a machine with a GPU and without a network, where the suite installs them. Run this
with the Python of ``.tools/venv-2026.2``: it takes the versions that are installed there, even for
another Python. Packages without a wheel in the index, such as nova-gpu itself, are built here; such
a wheel must fit every Python.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterable

from packaging import requirements
from packaging.utils import canonicalize_name

from tools.environments import ROOT

# The wheel tags that pip on the other machine accepts: glibc of Debian 12, Ubuntu 22.04 and later
_PLATFORMS = [
    f"manylinux_2_{minor}_x86_64" for minor in (35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
] + ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
_NO_WHEEL = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)==")


# Packages that required packages require, but that are not imported there: numpy, which is large,
# is for Nova's console proxies, setuptools for building; its installed version may not support a
# newer Python.
_UNUSED = ("numpy", "setuptools")


def listed() -> list[str]:
    """Return the requirements of nova-gpu and of the suite, as in requirements.txt."""
    files = (ROOT / "requirements.txt", ROOT / "tests/gpu/requirements.txt")
    lines = [line for file in files for line in file.read_text().splitlines()]
    words = [line.partition(" #")[0].strip() for line in lines]
    return [word for word in words if word and not word.startswith("#")]


class Failed(Exception):
    """The error that a wheel could not be collected, and why."""


def needed(names: Iterable[str], python: str) -> dict[str, str]:
    """Return the packages that *names* and their requirements need, with the installed versions.

    :param names: requirements as in requirements.txt
    :param python: the Python version of the other machine, such as 3.12
    """
    # The newest patch release of that Python: what only its first ones require is left out
    environ = {"python_version": python, "python_full_version": f"{python}.99", "extra": ""}
    versions: dict[str, str] = {}
    waiting = [requirements.Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (
            name in versions
            or name in _UNUSED
            or (wanted.marker and not wanted.marker.evaluate(environ))
        ):
            continue
        try:
            there = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError as error:
            raise Failed(f"{name} is not installed here: run tools/test style first") from error
        versions[name] = there.version
        for need in map(requirements.Requirement, there.requires or ()):
            extras = [{**environ, "extra": extra} for extra in wanted.extras]
            if need.marker is None or any(map(need.marker.evaluate, [environ, *extras])):
                need.marker = None
                waiting.append(need)
    return versions


def fetch(folder: pathlib.Path, versions: dict[str, str], python: str) -> None:
    """Download or build the wheels of nova-gpu and *versions* into *folder*, and delete others.

    :param versions: the version by the name of the package
    :param python: the Python version of the other machine
    """
    folder.mkdir(parents=True, exist_ok=True)
    for former in folder.glob("*.whl"):
        former.unlink()
    built = []
    pins = dict(versions)
    options = ["--python-version", python, "--implementation", "cp"]
    options += [word for name in _PLATFORMS for word in ("--platform", name)]
    while pins:
        lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
        command = ["download", "--only-binary=:all:", *options, "-d", str(folder), *lines]
        message = _pip(*command)
        if message is None:
            break
        match = _NO_WHEEL.search(message)
        name = canonicalize_name(match[1]) if match else ""
        if name not in pins:
            raise Failed(message)
        built.append(f"{name}=={pins.pop(name)}")
    own = ["--no-build-isolation", str(ROOT)]
    for wheel in (own, *([pin] for pin in built)):
        if message := _pip("wheel", "-w", str(folder), *wheel):
            raise Failed(message)
    for pin in built:
        name = pin.partition("==")[0].replace("-", "_")
        if not list(folder.glob(f"{name}-*-none-any.whl")):
            raise Failed(
                f"{pin} has no wheel in the index, and the one built here fits this Python only"
            )


def _pip(command: str, *arguments: str) -> str | None:
    """Run a pip command without dependencies; return its error output if it fails, or ``None``."""
    argv = [sys.executable, "-m", "pip", command, "-q", "--no-deps", *arguments]
    # pbr asks git for the version of what it builds; a checkout without tags gets one by this
    # variable.
    environ = {**os.environ, "PBR_VERSION": "0.0.0"} if str(ROOT) in argv else None
    done = subprocess.run(argv, capture_output=True, text=True, env=environ)
    return done.stderr if done.returncode else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.wheels", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument(
        "--python",
        default=".".join(map(str, sys.version_info[:2])),
        help="Python version of the machine with the GPU (default: %(default)s)",
    )
    arguments = parser.parse_args()
    try:
        versions = needed(listed(), arguments.python)
        fetch(arguments.folder, versions, arguments.python)
    except Failed as error:
        print(f"tests.gpu.wheels: {error}", file=sys.stderr)
        return 1
    sizes = [path.stat().st_size for path in arguments.folder.glob("*.whl")]
    print(f"{len(sizes)} wheels, {sum(sizes) / 2**20:.0f} MiB, in {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
