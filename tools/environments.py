# SPDX-License-Identifier: Apache-2.0
"""The virtual environments below ``.tools``, one for each Nova release, in which the suites run.

This module runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from importlib import util
from pathlib import Path

from lab import packages, version

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".tools"
LOG = STATE / "log"
RELEASES = {34: "2026.2", 33: "2026.1", 32: "2025.2", 31: "2025.1", 29: "2024.1"}
NEWEST = max(RELEASES)


def path(nova: int) -> Path:
    """Return the folder of a release's environment, whether it is installed or not."""
    return STATE / f"venv-{RELEASES[nova]}"


def variables(nova: int) -> dict[str, str]:
    """Return the environment variables with which suites run in a release's environment."""
    venv = path(nova)
    own = {"PATH": f"{venv}/bin:{os.environ.get('PATH', os.defpath)}", "PYTHONPATH": str(ROOT)}
    # Empty, as if it were not set: install() leaves compiling to the imports.
    own |= {"PYTHONDONTWRITEBYTECODE": ""}
    # In seconds; oslotest's base class reads it, so that a test that hangs fails by name.
    own |= {"OS_TEST_TIMEOUT": "300", "PYTHONUNBUFFERED": "1", "VIRTUAL_ENV": str(venv)}
    return {**os.environ, **own}


def install(nova: int) -> None:
    """Install missing Debian packages, and a release's virtual environment if it is outdated.

    :raises packages.MachineNotReady: if packages are missing and cannot be installed
    :raises subprocess.CalledProcessError: if pip fails
    """
    # libvirt-python has no wheel, and the documentation's theme calls git for the version.
    wanted = ["gcc", "git", "libc6-dev", "libvirt-dev", "pkg-config", "shellcheck"]
    wanted += [] if util.find_spec("ensurepip") else ["python3-venv"]
    has_headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    wanted += [] if has_headers else ["python3-dev"]
    if added := packages.install(wanted, LOG / "apt.log"):
        print(f"   installed {' '.join(added)}", flush=True)
    venv, constraints = path(nova), f"tools/constraints/{RELEASES[nova]}.txt"
    print(f"   virtual environment {venv.relative_to(ROOT)}", flush=True)
    names = ["requirements.txt", "test-requirements.txt"]
    names += ["lint-requirements.txt", "doc/requirements.txt"] if nova == NEWEST else []
    files = [constraints, *names, "pyproject.toml", "setup.cfg", "setup.py"]
    text = b"".join([sys.version.encode(), *((ROOT / name).read_bytes() for name in files)])
    digest, stamp = hashlib.sha256(text).hexdigest(), venv / ".installed"
    if stamp.exists() and stamp.read_text() == digest:
        return
    numbers = version.declared()
    pip = f"{venv}/bin/python -m pip install --progress-bar=off"
    site = f"{venv}/lib/python3.{sys.version_info.minor}/site-packages"
    with (LOG / f"install-{RELEASES[nova]}.log").open("wb") as log:
        for command in (
            f"{sys.executable} -m venv {venv}",
            # Of 11,000 modules the suites import 2,400, which Python compiles then.
            f"{pip} --no-compile -c {constraints} {' '.join(f'-r {name}' for name in names)}",
            # Nova's fixtures expect api-paste.ini next to the nova package.
            f"ln -sfn {venv}/etc {site}/etc",
            # The suites test the tree itself; pip writes the entry points and the mapping of
            # nova.virt.gpu. pbr would ask git for a version, and a checkout may have no tags.
            f"env PBR_VERSION={numbers} {pip} --no-deps --no-build-isolation --editable .",
        ):
            subprocess.run(shlex.split(command), cwd=ROOT, stdout=log, stderr=log, check=True)
    stamp.write_text(digest)
