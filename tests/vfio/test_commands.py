# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu host`` on a host with an IOMMU."""

from __future__ import annotations

import contextlib
import io
import pathlib
import re
import subprocess
import unittest

from nova.conf import CONF
from oslo_config import fixture as config_fixture

from lab.vm import cards
from nova_gpu.cmd import host_check
from nova_gpu.virt.inventory import discovery
from tests.vfio import host

_ROOT = pathlib.Path("/")
_DOCUMENTED = pathlib.Path(__file__).parents[2] / "doc/source/admin/host-check"


class HostCommandsTest(unittest.TestCase):
    def setUp(self) -> None:
        config = self.enterContext(config_fixture.Config(CONF))
        config.config(group="gpu", addresses=[cards.WHOLE[1]])
        config.config(group="libvirt", virt_type="kvm")

    def test_documentation(self) -> None:
        """What doc/ shows is what the command prints."""
        card = cards.WHOLE[1]
        self.assertPrinted("unbound", 0)
        (node,) = pathlib.Path("/dev/dri/by-path").glob(f"pci-{card}-card")
        with node.open() as file:
            process = subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()])
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertPrinted("busy", 1)
        process.kill()
        process.communicate()
        self.addCleanup(self._to_host, card)
        for function in host.functions(card):
            host.bind(function, "vfio-pci")
        self.assertPrinted("prepared", 0)

    def assertPrinted(self, name: str, status: int) -> None:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            self.assertEqual(status, host_check.main(discovery.Discovery(), _ROOT, as_json=False))
        printed, shown = (
            re.sub(r"\(pid \d+\)", "(pid N)", text)
            for text in (output.getvalue(), (_DOCUMENTED / f"{name}.txt").read_text())
        )
        self.assertEqual(shown, printed)

    def _to_host(self, card: str) -> None:
        subprocess.run(["udevadm", "control", "--reload"], check=True)
        for function in host.functions(card):
            host.override_by(function, "")
            if host.driver(function) is not None:
                host.unbind(function)
            host.probe(function)
