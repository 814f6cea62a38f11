# SPDX-License-Identifier: Apache-2.0
"""The virtual environment, as a disk that the VM mounts at /opt/nova."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Collection

from lab.cloud import steps
from lab.vm import build_cache, system

DISK = "environment.ext4"
_SIZE_MIB = 2048
_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
_SITE = f"lib/{_PYTHON}/site-packages"
# Debian's interpreter of the same version, which can use compiled files and extensions.
_CONFIGURATION = "home = /usr/bin\ninclude-system-site-packages = false\n"
_SCRIPTS = ("nova-compute", "nova-gpu", "nova-gpu-status", "privsep-helper", "stestr")
# Large packages that nothing in the VM uses.
_LEFT_OUT = ("babel", "mypy", "mypyc", "numpy", "numpy.libs", "pip", "ruff", "sphinx")


def obstacle(venv: pathlib.Path) -> str | None:
    """Return why the VM's Python cannot use the packages in *venv*, ``None`` if it can."""
    if not (venv / _SITE / "nova").is_dir():
        return f"there is no Nova in {venv}: run it with the Python of tools/test's environment"
    return None


def build(state: pathlib.Path, venv: pathlib.Path) -> pathlib.Path:
    """Return the folder with :data:`DISK`; build it if it is missing."""
    site = venv / _SITE
    installed = sorted(path.name for path in site.glob("*.dist-info"))
    entry_points = sorted(site.glob("nova_gpu-*.dist-info/entry_points.txt"))
    project = sorted(site.glob("*_gpu*/**/*.py"))  # none where its install is editable
    key = build_cache.digest(installed, *entry_points, *project, pathlib.Path(__file__))

    def make(folder: pathlib.Path) -> None:
        log = state / "log" / "environment.log"
        with steps.step("disk with the virtual environment", log):
            tree = folder / "tree"
            _copy(venv, tree)
            system.make_disk(folder / DISK, tree, _SIZE_MIB, log)
            shutil.rmtree(tree)

    return build_cache.made(state, "environment", key, make)


def _copy(venv: pathlib.Path, tree: pathlib.Path) -> None:
    (tree / "bin").mkdir(parents=True)
    for name in ("python", "python3", _PYTHON):
        (tree / "bin" / name).symlink_to(f"/usr/bin/{_PYTHON}")
    (tree / "pyvenv.cfg").write_text(_CONFIGURATION)
    site = tree / _SITE
    shutil.copytree(venv / _SITE, site, symlinks=True, ignore=_ignored)
    # Python would compile them under emulation. Some templates are not Python 3, and stay.
    argv = [sys.executable, "-m", "compileall", "-qq", "-j", "0", "-p", "/opt/nova"]
    subprocess.run([*argv, "-s", str(tree), str(site)], stdout=subprocess.DEVNULL, check=False)
    shutil.copytree(venv / "etc", tree / "etc")
    # Nova's fixtures expect it next to the package nova.
    (site / "etc").unlink(missing_ok=True)
    (site / "etc").symlink_to("/opt/nova/etc")
    # An editable install knows where the tree is on this machine; in the VM it is /project.
    if not (site / "nova/virt/gpu").exists():
        (site / "nova/virt/gpu").symlink_to("/project/nova_gpu/virt_ext")
    for script in _SCRIPTS:
        if (venv / "bin" / script).exists():
            _copy_script(venv / "bin" / script, tree / "bin" / script)


def _ignored(folder: str, names: list[str]) -> Collection[str]:
    if pathlib.Path(folder).name != "site-packages":
        return ()
    return [
        name
        for name in names
        if name in _LEFT_OUT or name.startswith("__editable__") or "__mypyc." in name
    ]


def _copy_script(source: pathlib.Path, target: pathlib.Path) -> None:
    _, _, code = source.read_text().partition("\n")
    target.write_text(f"#!/opt/nova/bin/python\n{code}")
    os.chmod(target, 0o755)
