# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

import fixtures

from nova_gpu.core import model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import nodes
from tests.fixtures import hosts, nvidia
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.cards import card
from tests.fixtures.nodes import Nodes

ONE, TWO = "0000:18:00.0", "0000:88:00.0"


class NodesTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = self.host.roots

    def own(self, address: str, driver: str | None = "nvidia") -> tuple[str, ...]:
        return nodes.own_nodes(card(address, driver), self.roots)


class TestNumber(NodesTestCase):
    def test_links_are_followed(self) -> None:
        (self.roots.dev / "dri").mkdir()
        (self.roots.dev / "nvidia0").symlink_to("/dev/null")
        (self.roots.dev / "dri/of-the-card").symlink_to("../nvidia0")
        expected = os.stat("/dev/null").st_rdev
        for node in ("/dev/nvidia0", "/dev/dri/of-the-card"):
            self.assertEqual(expected, nodes.number(node, self.roots))

    def test_none(self) -> None:
        (self.roots.dev / "file").touch()
        for node in ("/dev/file", "/dev/gone", "/dev/a\0b", "/dev", "/srv/null", ""):
            self.assertIsNone(nodes.number(node, self.roots), node)


class TestWhose(NodesTestCase):
    def test_nvidia_goes_by_the_minor(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=3)
        self.host.add_gpu(TWO, "10de", "2335", minor=0)
        self.assertEqual(("/dev/nvidia3",), self.own(ONE))
        self.assertEqual(("/dev/nvidia0",), self.own(TWO))

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

    def test_of_one_that_is_not_there(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=4, mig=[(1, 0)])
        for text in (f"{ONE}/1g.18gb/101", f"{ONE}/1g.18gb/200", f"{TWO}/1g.18gb/100"):
            slot = Slot.parse(text)
            self.assertEqual((), nodes.instance_nodes(slot, self.roots))
            self.assertEqual((), nodes.own_instance_nodes(slot, self.roots))
            self.assertEqual((), nodes.guest_nodes(slot, self.roots))

    def test_unknown_minor_is_not_guessed(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335")
        information = self.roots.proc / f"driver/nvidia/gpus/{ONE}/information"
        information.write_text("Model: \t\t Unknown\nDevice Minor: \t ?\n")
        self.assertEqual((), self.own(ONE))
        information.unlink()
        self.assertEqual((), self.own(ONE))

    def test_drm(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        self.host.add_gpu(TWO, "8086", "0bd5")
        (self.host.path(ONE) / "drm/controlD64").mkdir()
        self.assertEqual(("/dev/dri/card1", "/dev/dri/renderD129"), self.own(ONE, "amdgpu"))
        self.assertEqual(("/dev/dri/card2", "/dev/dri/renderD130"), self.own(TWO, "xe"))

    def test_without_the_vendors_driver_none(self) -> None:
        self.host.add_gpu(ONE, "1002", "74a1")
        self.assertEqual((), self.own(ONE, "vfio-pci"))
        self.assertEqual((), self.own(ONE, None))

    def test_card_nodes_has_drm_of_nvidia(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=0)
        for name in ("card7", "renderD135"):
            (self.host.path(ONE) / "drm" / name).mkdir(parents=True)
        self.assertEqual(
            ("/dev/nvidia0", "/dev/dri/card7", "/dev/dri/renderD135"),
            nodes.card_nodes(card(ONE), self.roots),
        )
        self.assertEqual(("/dev/nvidia0",), self.own(ONE))

    def test_shared(self) -> None:
        for driver, expected in (
            ("nvidia", ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")),
            ("amdgpu", ("/dev/kfd",)),
            ("i915", ()),
        ):
            self.assertEqual(expected, nodes.shared_nodes(driver))

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

    def test_required(self) -> None:
        for node in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dri/renderD128"):
            self.assertTrue(nodes.is_required(node), node)
        for node in ("/dev/nvidia-uvm-tools", "/dev/kfd", "/dev/nvidia-caps/nvidia-cap12"):
            self.assertFalse(nodes.is_required(node), node)

    def test_open_mode(self) -> None:
        self.assertEqual(0o20666, nodes.open_mode("/dev/dri/renderD128", 0o20660))
        self.assertEqual(0o20666, nodes.open_mode("/dev/nvidia0", 0o20666))
        self.assertEqual(0o20404, nodes.open_mode("/dev/nvidia-caps/nvidia-cap12", 0o20400))


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

    def test_nothing_to_do(self) -> None:
        self.tool("exit 0")
        self.host = hosts.Host(self.root / "other", nodes=Nodes.FILES)
        self.roots = self.host.roots
        self.host.add_gpu(ONE, "10de", "2335")
        self.make(card(ONE), card(TWO, "vfio-pci"), card(TWO, "amdgpu"))
        self.assertEqual([], self.called())

    def test_a_failure_names_card_node_and_reason(self) -> None:
        self.tool("echo 'no such device' >&2; exit 1")
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.make(card(ONE))
        for word in (ONE, "/dev/nvidia4", "/dev/nvidiactl", "ended with 1", "no such device"):
            self.assertIn(word, self.log.output)
        self.assertNotIn("nvidia-uvm-tools", self.log.output)

    def test_success_without_nodes_is_reported(self) -> None:
        self.tool("exit 0")
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.make(card(ONE))
        self.assertIn("succeeded, but made no node", self.log.output)

    def test_no_tool(self) -> None:
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(self.tools)))
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.make(card(ONE))
        self.assertIn("nvidia-modprobe is not on the PATH", self.log.output)

    def test_a_tool_that_cannot_be_run(self) -> None:
        self.tool("exit 0")
        (self.tools / "nvidia-modprobe").write_text(f"#!{self.tools}/none\n")
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.make(card(ONE))
        for word in (ONE, "nvidia-modprobe -c 255 -c 4", "No such file or directory"):
            self.assertIn(word, self.log.output)

    def test_a_tool_that_hangs_is_given_up(self) -> None:
        self.tool("exec sleep 60")
        self.host.add_gpu(ONE, "10de", "2335", minor=4)
        self.make(card(ONE), timeout_s=0.2)
        self.assertIn("did not answer within 0.2 s", self.log.output)
