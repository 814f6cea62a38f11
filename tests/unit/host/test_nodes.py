# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

import fixtures

from nova_gpu.core import model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import nodes
from tests.fixtures import nvidia
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.cards import card

ONE, TWO = "0000:18:00.0", "0000:88:00.0"


class NodesTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = self.host.roots

    def own(self, address: str, driver: str | None = "nvidia") -> tuple[str, ...]:
        return nodes.own_nodes(card(address, driver), self.roots)


class TestNumber(NodesTestCase):
    def test_none(self) -> None:
        (self.roots.dev / "file").touch()
        for node in ("/dev/file", "/dev/gone", "/dev/a\0b", "/dev", "/srv/null", ""):
            self.assertIsNone(nodes.number(node, self.roots), node)


class TestWhose(NodesTestCase):
    def test_mig_instances_of_the_card_only(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=0, mig=[(1, 0), (2, 0), (2, 1)])
        self.host.add_gpu(TWO, "10de", "2335", minor=1, mig=[(1, 0)])
        caps = [
            nvidia.cap_minor(0, 1),
            nvidia.cap_minor(0, 1, 0),
            nvidia.cap_minor(0, 2),
            nvidia.cap_minor(0, 2, 0),
            nvidia.cap_minor(0, 2, 1),
        ]
        expected = {"/dev/nvidia0", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)}
        self.assertEqual(expected, set(self.own(ONE)))

    def test_of_one_mig_instance(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=4, mig=[(1, 0), (2, 0), (2, 1)])
        slot = Slot.parse(f"{ONE}/1c.2g.35gb/201")
        caps = [f"/dev/nvidia-caps/nvidia-cap{nvidia.cap_minor(4, 2, *ci)}" for ci in ((), (1,))]
        self.assertEqual(("/dev/nvidia4", *caps), nodes.instance_nodes(slot, self.roots))
        # That of the GPU instance is its other compute instance's as well.
        self.assertEqual((caps[1],), nodes.own_instance_nodes(slot, self.roots))
        alone = nodes.own_instance_nodes(Slot.parse(f"{ONE}/1g.18gb/100"), self.roots)
        self.assertEqual(2, len(alone))
        shared = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
        self.assertEqual(("/dev/nvidia4", *caps, *shared), nodes.guest_nodes(slot, self.roots))

    def test_drm(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        self.host.add_gpu(TWO, "8086", "0bd5")
        (self.host.path(ONE) / "drm/controlD64").mkdir()
        self.assertEqual(("/dev/dri/card1", "/dev/dri/renderD129"), self.own(ONE, "amdgpu"))
        self.assertEqual(("/dev/dri/card2", "/dev/dri/renderD130"), self.own(TWO, "xe"))

    def test_guest_nodes_by_what_drives_the_card(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        address = model.PciAddress.parse(ONE)
        self.assertEqual(
            ("/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"),
            nodes.guest_nodes(address, self.roots),
        )
        self.host.bind(ONE, "vfio-pci")
        self.assertEqual((), nodes.guest_nodes(address, self.roots))
        self.assertEqual((), nodes.guest_nodes(model.PciAddress.parse(TWO), self.roots))

    def test_required_and_open_mode(self) -> None:
        for node, is_required, mode, opened in (
            ("/dev/nvidia0", True, 0o20666, 0o20666),
            ("/dev/nvidiactl", True, 0o20666, 0o20666),
            ("/dev/nvidia-uvm", True, 0o20666, 0o20666),
            ("/dev/dri/renderD128", True, 0o20660, 0o20666),
            ("/dev/nvidia-uvm-tools", False, 0o20666, 0o20666),
            ("/dev/kfd", False, 0o20660, 0o20666),
            ("/dev/nvidia-caps/nvidia-cap12", False, 0o20400, 0o20404),
        ):
            self.assertEqual(is_required, nodes.is_required(node), node)
            self.assertEqual(opened, nodes.open_mode(node, mode), node)


class TestMakeNodes(NodesTestCase):
    """A script in the place of nvidia-modprobe writes down how it was called."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.calls = self.root / "calls"
        self.tools = self.root / "bin"
        self.tools.mkdir()
        path = f"{self.tools}:{os.environ['PATH']}"
        self.useFixture(fixtures.EnvironmentVariable("PATH", path))

    def tool(self, script: str) -> None:
        tool = self.tools / "nvidia-modprobe"
        tool.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\n{script}\n')
        tool.chmod(0o755)

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def make(self, *gpus: model.GPU, timeout_s: float = 60) -> None:
        nodes.make_nodes(gpus, self.roots, timeout_s)

    def test_made_for_all_cards_at_once(self) -> None:
        dev = self.roots.dev
        self.tool(
            f'test "$1" = -u && exec touch {dev}/nvidia-uvm {dev}/nvidia-uvm-tools\n'
            f"touch {dev}/nvidiactl {dev}/nvidia4 {dev}/nvidia0"
        )
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.host.add_gpu(TWO, "10de", "2335", minor=0)
        self.make(card(ONE), card(TWO))
        self.assertEqual(["-c 255 -c 4 -c 0", "-u -c 0"], self.called())
        self.assertTrue(nodes.is_there("/dev/nvidia4", self.roots))
        self.assertEqual("", self.log.output)
        self.make(card(ONE), card(TWO))
        self.assertEqual(2, len(self.called()))

    def test_mig_capabilities_are_asked_for(self) -> None:
        self.tool("exit 0")
        self.host.add_gpu(ONE, "10de", "2335", minor=0, mig=[(1, 0)])
        self.make(card(ONE))
        mig = self.roots.proc / "driver/nvidia/capabilities/gpu0/mig"
        self.assertEqual(
            f"-c 255 -c 0 -f {mig}/gi1/access -f {mig}/gi1/ci0/access", self.called()[0]
        )

    def test_a_failure_names_card_node_and_reason(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.tool("echo 'no such device' >&2; exit 1")
        self.make(card(ONE))
        for word in (ONE, "/dev/nvidia4", "/dev/nvidiactl", "ended with 1", "no such device"):
            self.assertIn(word, self.log.output)
        self.assertNotIn("nvidia-uvm-tools", self.log.output)
        self.tool("exec sleep 60")
        self.make(card(ONE), timeout_s=0.2)
        self.assertIn("did not answer within 0.2 s", self.log.output)
        (self.tools / "nvidia-modprobe").unlink()
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(self.tools)))
        self.make(card(ONE))
        self.assertIn("nvidia-modprobe is not on the PATH", self.log.output)
