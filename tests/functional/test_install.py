# SPDX-License-Identifier: Apache-2.0
"""``pip install .`` and ``pip install -e .``: both give compute_driver = gpu.GPULibvirtDriver."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = (
    *("nova_gpu", "osc_gpu", "extensions", "pyproject.toml", "setup.cfg", "setup.py"),
    *("requirements.txt", "README.rst"),
)
# What Nova does with compute_driver, and what the package must bring besides.
QUESTION = """
import importlib.metadata, importlib.resources
from oslo_utils import importutils
import nova.virt.driver
driver = importutils.import_class("nova.virt.gpu.GPULibvirtDriver")
assert issubclass(driver, nova.virt.driver.ComputeDriver)
assert importlib.resources.files("nova_gpu.data").joinpath("gpu-products.tsv").is_file()
ours, novas = (set(importlib.metadata.files(name)) for name in ("nova-gpu", "nova"))
assert not ours & novas, ours & novas
points = importlib.metadata.distribution("nova-gpu").entry_points
assert {"nova.api.extra_spec_validators", "nova_gpu.vendordata"} <= points.groups
assert [point.load() for point in points]
print(importlib.metadata.version("nova-gpu"))
"""


class TestInstall(unittest.TestCase):
    """In a copy of this virtual environment without nova-gpu, from a copy of the sources."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(dir=pathlib.Path(sys.prefix))
        cls.addClassCleanup(folder.cleanup)
        cls.source = pathlib.Path(folder.name, "source")
        cls.source.mkdir()
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, cls.source / name)
        venv = pathlib.Path(folder.name, "venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        cls.python = venv / "bin" / "python"
        (site,) = venv.glob("lib/python3*/site-packages")
        # Hard links: pip neither writes to these 20,000 files nor knows that they are shared.
        shutil.copytree(
            sysconfig.get_path("purelib"),
            site,
            symlinks=True,
            copy_function=os.link,
            ignore=shutil.ignore_patterns("nova_gpu*", "osc_gpu*", "__editable__*"),
            dirs_exist_ok=True,
        )

    def run_python(self, *arguments: str) -> str:
        environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [self.python, *arguments],
            # Elsewhere, so that the sources are not found in the working directory.
            cwd="/",
            env={**environ, "PBR_VERSION": "1.2.3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(0, done.returncode, done.stdout)
        return done.stdout

    def check(self, *arguments: str) -> None:
        """Before it no answer, after it one, and Nova outlives its removal."""
        with self.assertRaisesRegex(AssertionError, "nova.virt.gpu"):
            self.run_python("-c", QUESTION)
        self.run_python(*("-m", "pip", "install", "--no-deps", "--no-build-isolation"), *arguments)
        self.assertEqual("1.2.3", self.run_python("-W", "ignore", "-c", QUESTION).split()[-1])
        self.run_python("-m", "pip", "uninstall", "--yes", "nova-gpu")
        self.run_python("-c", "import nova.virt.libvirt.driver")

    def test_plain(self):
        self.check(str(self.source))

    def test_editable(self):
        self.check("--editable", str(self.source))
