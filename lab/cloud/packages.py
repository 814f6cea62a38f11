# SPDX-License-Identifier: Apache-2.0
"""Installs the packages of the lab: Debian's, and a virtual environment from PyPI.

The environment is made again only if the list of packages has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from lab import packages, version
from lab.cloud import settings, steps

# The interpreter that user "nova" can reach; root's own may be in /root.
_PYTHON = "/usr/bin/python3"
_FIRST = ("python3-venv",)
_DEBIAN = (
    "busybox-static",
    "e2fsprogs",
    "gcc",
    "libc6-dev",
    "libvirt-clients",
    "libvirt-daemon-driver-lxc",
    # It has the user without which libvirtd's QEMU driver does not start.
    "libvirt-daemon-system",
    "libvirt-dev",
    "mariadb-client-core",
    "mariadb-server-core",
    "mount",
    "pkg-config",
    "python3-dev",
    "qemu-utils",
    "rabbitmq-server",
    "sudo",
    "util-linux",
)
# The constraints file pins these with all that they require.
_PYPI = (
    "PyMySQL",
    "PyYAML",
    "glance",
    "gunicorn",
    "keystone",
    "nova",
    "nvidia-ml-py",
    "openstack-placement",
    "osc-placement",
    "pyroute2",
    "python-novaclient",
    "python-openstackclient",
)
# Built against Debian's libvirt, so installed after it.
_BUILT = ("libvirt-python",)
# The tools that build the project's package.
_PROJECT = (
    *("nova_gpu", "osc_gpu", "extensions", "pyproject.toml", "setup.cfg", "setup.py"),
    *("requirements.txt", "README.rst"),
)
_POLICY = pathlib.Path("/usr/sbin/policy-rc.d")


def install(lab: settings.Lab, project: bool = True) -> None:
    """Install all packages that OpenStack needs.

    :param project: whether nova-gpu is installed, too; otherwise it is removed
    """
    apt, pip = lab.log / "apt.log", lab.log / "pip.log"
    lab.log.mkdir(parents=True, exist_ok=True)
    wanted = _digest()
    stamp = lab.venv / ".installed"
    fresh = not stamp.exists() or stamp.read_text() != wanted
    if _lacks(_FIRST):
        with steps.step("Debian: python3-venv", apt):
            debian(_FIRST, apt)

    def system() -> None:
        with steps.step("Debian packages", apt):
            debian(_DEBIAN, apt)

    def pypi() -> None:
        with steps.step("Nova and the other services from PyPI", pip):
            steps.run([_PYTHON, "-m", "venv", "--clear", str(lab.venv)], pip)
            _pip(lab, _PYPI, "--no-compile")
            _compile(lab)

    steps.together(*([system] if _lacks(_DEBIAN) else []), *([pypi] if fresh else []))
    if fresh:
        with steps.step("libvirt-python, built against Debian's libvirt", pip):
            _pip(lab, _BUILT)
        stamp.write_text(wanted)
    if project:
        _install_project(lab)
    else:
        _remove_project(lab)


def _digest() -> str:
    constraints = _constraints().read_bytes()
    return hashlib.sha256(constraints + repr((_PYPI, _BUILT)).encode()).hexdigest()


def _constraints() -> pathlib.Path:
    return settings.ROOT / "tools" / "constraints" / f"{settings.RELEASE}.txt"


def _lacks(names: Sequence[str]) -> bool:
    try:
        return bool(packages.missing_packages(names))
    except packages.MachineNotReady as error:
        raise steps.Failed(str(error)) from error


def debian(names: Sequence[str], log: pathlib.Path) -> None:
    """Install the Debian packages *names*, without starting their services."""
    with _services_stay_stopped():
        try:
            packages.install(names, log)
        except packages.MachineNotReady as error:
            raise steps.Failed(str(error)) from error


@contextlib.contextmanager
def _services_stay_stopped() -> Iterator[None]:
    """Keep Debian from starting the services of new packages while the block runs.

    policy-rc.d does that (invoke-rc.d(8)).
    """
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def _pip(lab: settings.Lab, names: tuple[str, ...], *options: str) -> None:
    argv = [lab.program("python"), "-m", "pip", "install", "--prefer-binary", "--progress-bar=off"]
    argv += ["--cache-dir", str(lab.cache / "pip"), "--constraint", str(_constraints())]
    steps.run([*argv, *options, *names], lab.log / "pip.log")


def _compile(lab: settings.Lab) -> None:
    """Compile the environment's packages to bytecode, except their tests.

    This uses all processors, and pip only one. Files that are not Python 3, such as some templates,
    are not compiled.
    """
    argv = [lab.program("python"), "-m", "compileall", "-qq", "-j", "0", "-x", "/tests/"]
    sites = map(str, lab.venv.glob("lib/python3*/site-packages"))
    subprocess.run([*argv, *sites], stdout=subprocess.DEVNULL, check=False)


def _install_project(lab: settings.Lab) -> None:
    """Install nova-gpu from this checkout, unless it is installed with the same files.

    It is built in a copy, because building leaves files, and its requirements are installed
    already. A checkout may lack tags, so PBR_VERSION is set.
    """
    log, copy, stamp = lab.log / "pip.log", lab.cache / "project", lab.venv / ".project"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in _PROJECT:
        source = settings.ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy)
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    content = b"\0".join(str(path).encode() + path.read_bytes() for path in files)
    wanted = hashlib.sha256(content).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with steps.step("this project", log):
        argv = [lab.program("python"), "-m", "pip", "install", "--no-deps", "--force-reinstall"]
        argv += ["--cache-dir", str(lab.cache / "pip"), str(copy)]
        steps.run(argv, log, {**os.environ, "PBR_VERSION": version.declared()})
        stamp.write_text(wanted)


def _remove_project(lab: settings.Lab) -> None:
    log = lab.log / "pip.log"
    (lab.venv / ".project").unlink(missing_ok=True)
    with steps.step("without this project", log):
        steps.run([lab.program("python"), "-m", "pip", "uninstall", "--yes", "nova-gpu"], log)
