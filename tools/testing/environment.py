# SPDX-License-Identifier: Apache-2.0
"""A virtual environment per Nova release, made once and reused while its inputs are the same."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".tools"
# What the suites install beside Nova; the constraints file says which versions.
REQUIREMENTS = ("requirements.txt", "test-requirements.txt")
LINTERS = ("lint-requirements.txt", "doc/requirements.txt")
# What the suite of machines with a card needs, and has carried there as wheels
CARRIED = ("requirements.txt", "tests/gpu/requirements.txt")
# What the installed project consists of besides its modules, which are used in place.
PROJECT = ("pyproject.toml", "setup.cfg", "setup.py")
RELEASES = {34: "2026.2", 33: "2026.1", 32: "2025.2", 31: "2025.1"}
NEWEST = max(RELEASES)


class InstallFailed(Exception):
    """pip or venv failed; the text names the command and its log."""


@dataclasses.dataclass(frozen=True)
class Environment:
    """The virtual environment for one Nova release. Where there is a folder of *wheels*, these are
    what is installed, and nothing else."""

    nova: int
    wheels: Path | None = None

    @property
    def release(self) -> str:
        return RELEASES[self.nova]

    @property
    def path(self) -> Path:
        return STATE / f"venv-{self.release}{'-carried' * bool(self.wheels)}"

    @property
    def python(self) -> str:
        return str(self.path / "bin" / "python")

    @property
    def log(self) -> Path:
        return STATE / "log" / f"install-{self.release}.log"

    @property
    def requirements(self) -> tuple[str, ...]:
        return REQUIREMENTS + LINTERS if self.nova == NEWEST else REQUIREMENTS

    def variables(self) -> dict[str, str]:
        """The process environment in which the suites run."""
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(self.path / "bin"), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            # Seconds, read by oslotest's base class: a test that stands still fails by name, with
            # where it stood, and the others run.
            "OS_TEST_TIMEOUT": "300",
            "VIRTUAL_ENV": str(self.path),
        }


def prepare(environment: Environment) -> bool:
    """Make or bring up to date the environment; False when nothing was to do.

    Raises InstallFailed.
    """
    if environment.wheels:
        return _carry(environment, environment.wheels)
    constraints = f"tools/constraints/{environment.release}.txt"
    wanted = _digest([constraints, *environment.requirements])
    project = _digest(PROJECT)
    worked = False
    if _stamp(environment, "requirements") != wanted:
        worked = True
        _run(environment, [sys.executable, "-m", "venv", "--clear", str(environment.path)])
        arguments = [part for name in environment.requirements for part in ("-r", name)]
        _pip(environment, "--no-compile", "-c", constraints, *arguments)
        if environment.nova == NEWEST:
            compile_modules(environment.python)
        _link_etc(environment)
        _write_stamp(environment, "requirements", wanted)
    if worked or _stamp(environment, "project") != project:
        worked = True
        # Editable: the suites test the tree as it is. pip still writes the entry points and the
        # finder that maps nova.virt.gpu onto nova_gpu/virt_ext.
        # pbr asks git for the version: a checkout without tags or without git has one all the same.
        # For this package only, because others are built from source by pbr too.
        options = ("--no-deps", "--no-build-isolation", "--editable", ".")
        _pip(environment, *options, PBR_VERSION="0.0.0")
        _write_stamp(environment, "project", project)
    return worked


def _carry(environment: Environment, folder: Path) -> bool:
    """All of the wheels, this project's own among them: the suites have its tree before them."""
    wheels = sorted(folder.glob("*.whl"))
    pips = [path for path in wheels if path.name.startswith("pip-")]
    if not pips:
        raise InstallFailed(f"{folder} has no wheel of pip: python -m tools.wheels makes it")
    wanted = "\n".join([sys.version, *(f"{path.name} {path.stat().st_size}" for path in wheels)])
    if _stamp(environment, "wheels") == wanted:
        return False
    # pip is run out of its wheel: Debian's Python puts none into an environment.
    venv = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment.path)]
    _run(environment, venv)
    install = ["install", "--no-index", "--no-deps", "--no-compile", "--progress-bar=off"]
    _run(environment, [environment.python, f"{pips[-1]}/pip", *install, *map(str, wheels)])
    _write_stamp(environment, "wheels", wanted)
    return True


def listed(names: Iterable[str]) -> list[str]:
    """What the files of requirements name, a line each"""
    lines = [line for name in names for line in (ROOT / name).read_text().splitlines()]
    words = [line.partition(" #")[0].strip() for line in lines]
    return [word for word in words if word and not word.startswith("#")]


def compile_modules(python: str, *, tests: bool = True) -> None:
    """Compiles what is installed beside *python*, on all processors: pip does it on one of them.
    What of it is no Python 3, as some templates are, stays as it is. An environment in which little
    is run need not be compiled at all.

    :param tests: with the tests that packages bring, more than a third of all
    """
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    left_out = () if tests else ("-x", "/tests/")
    argv = [python, "-m", "compileall", "-qq", "-j", "0", *left_out, said.stdout.strip()]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=False)


def _digest(names: Sequence[str]) -> str:
    digest = hashlib.sha256(sys.version.encode())
    for name in names:
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return digest.hexdigest()


def _stamp(environment: Environment, name: str) -> str | None:
    try:
        return (environment.path / f".{name}").read_text()
    except FileNotFoundError:
        return None


def _write_stamp(environment: Environment, name: str, digest: str) -> None:
    (environment.path / f".{name}").write_text(digest)


def _link_etc(environment: Environment) -> None:
    """Nova's fixtures look for api-paste.ini in etc/ beside the nova package."""
    (site,) = (environment.path / "lib").glob("python3*/site-packages")
    link = site / "etc"
    if not link.is_symlink():
        link.symlink_to(environment.path / "etc")


def _pip(environment: Environment, *arguments: str, **variables: str) -> None:
    command = [environment.python, "-m", "pip", "install", "--progress-bar=off", *arguments]
    _run(environment, command, **variables)


def _run(environment: Environment, command: Sequence[str], **more: str) -> None:
    environment.log.parent.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **more}
    with environment.log.open("ab") as log:
        code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, env=variables).returncode
    if code:
        raise InstallFailed(f"{' '.join(command)} ended with {code}; see {environment.log}")
