# SPDX-License-Identifier: Apache-2.0
"""The files in which apt has this machine's sources of Debian packages."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from lab import packages

# The fields of an entry that are used; apt calls its suite the release.
_FORMAT = "$(RELEASE)|$(COMPONENT)|$(SOURCESENTRY)"
_POCKETS = ("", "-updates", "-security", "-backports")


def files(codename: str) -> tuple[Path, ...]:
    """Return the source files that name Debian *codename* or its updates, in either format.

    Sources other than Debian's are left out: their packages are not needed.

    :raises lab.packages.MachineNotReady: if apt has no such source
    """
    # Without apt's cached lists, which may not exist yet.
    argv = ["apt-get", "indextargets", "--no-release-info", "--format", _FORMAT]
    argv.append("Created-By: Packages")
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise packages.MachineNotReady("this is no Debian: no apt-get on PATH") from error
    suites = {f"{codename}{pocket}" for pocket in _POCKETS}
    names = []
    for line in answer.stdout.splitlines():
        release, component, entry = line.split("|", 2)
        if release in suites and component == "main":
            names.append(Path(entry.rpartition(":")[0]))
    if not names:
        message = answer.stderr.strip().partition("\n")[0]
        raise packages.MachineNotReady(
            f"apt has no source of Debian {codename}{': ' if message else ''}{message}; add one "
            "in /etc/apt/sources.list.d (sources.list(5))"
        )
    return tuple(dict.fromkeys(names))


def files_of(codename: str, others: Iterable[str], folder: Path) -> tuple[Path, ...]:
    """Return the source files of Debian *codename*, made from another release's if necessary.

    They are then copies in *folder* that name *codename*, because mirrors have all releases.

    :param others: the code names of the other releases, in order of preference
    :raises lab.packages.MachineNotReady: if apt has no source of *others* either
    """
    try:
        return files(codename)
    except packages.MachineNotReady:
        for other in others:
            with contextlib.suppress(packages.MachineNotReady):
                return tuple(
                    _renamed(path, other, codename, folder / f"{number}-{path.name}")
                    for number, path in enumerate(files(other))
                )
        raise


def _renamed(path: Path, other: str, codename: str, copy: Path) -> Path:
    copy.write_text(re.sub(rf"\b{other}\b", codename, path.read_text()))
    return copy
