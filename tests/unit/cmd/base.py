# SPDX-License-Identifier: Apache-2.0
"""What the tests of ``nova-gpu`` share."""

from __future__ import annotations

import contextlib
import io
import pathlib
import subprocess
from collections.abc import Callable

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from tests.fixtures import commands

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
