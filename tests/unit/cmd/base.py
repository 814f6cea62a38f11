# SPDX-License-Identifier: Apache-2.0
"""What the tests of ``nova-gpu`` share."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from tests.fixtures import commands

ROOT = pathlib.Path(__file__).parents[3]
# A command as the installed script runs it
MAIN = "import sys; from nova_gpu.cmd import {0}; sys.exit({0}.main())"
_CONF = """
[DEFAULT]
state_path = {root}
[libvirt]
virt_type = {virt_type}
uid_maps = 0:100000:65536
gid_maps = 0:100000:65536
[gpu]
sysfs_root = {root}/sys
proc_root = {root}/proc
dev_root = {root}/dev
nvml = false
{options}
"""


def fresh(
    program: str, *words: object, path: object = ROOT, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
    """Run *program* in an interpreter of its own, with modules of the folder *path* before ours."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *map(str, words)],
        env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}"},
        **{"capture_output": True, "text": True, "check": False, **kwargs},
    )


class HostTestCase(base.BaseTestCase):
    """A generated host and the options that have it read, in this process."""

    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.config = self.useFixture(config_fixture.Config(CONF))
        for name in ("sysfs", "dev", "proc"):
            self.option(f"{name}_root", str(self.root / name.replace("sysfs", "sys")))
        self.option("nvml", False)
        for name in ("uid_maps", "gid_maps"):
            self.config.config(group="libvirt", **{name: ["0:100000:65536"]})
        self.virt_type("kvm")

    def option(self, name: str, value: object) -> None:
        self.config.config(group="gpu", **{name: value})

    def virt_type(self, virt_type: str) -> None:
        self.config.config(group="libvirt", virt_type=virt_type)

    def printed(self, status: int, function: Callable[[], int]) -> str:
        """What *function* prints, which has to return *status*"""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            returned = function()
        self.assertEqual(status, returned, output.getvalue())
        return output.getvalue()


class CommandTestCase(base.BaseTestCase):
    """The command as an operator calls it, in a process of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.conf = self.root / "nova.conf"

    def configure(self, virt_type: str, options: str = "") -> None:
        text = _CONF.format(root=self.root, virt_type=virt_type, options=options)
        self.conf.write_text(text)

    def nova_gpu(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return commands.run("nova_gpu.cmd.gpu", "--config-file", self.conf, *arguments)
