# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
from collections.abc import Collection
from typing import Any

import fixtures

from nova_gpu.core import container as values
from nova_gpu.core import exception, model
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import nodes
from nova_gpu.host.container import contents, libraries
from tests.fixtures import cdi as fake
from tests.fixtures import nvidia
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.cards import card
from tests.fixtures.nodes import Nodes

UID = os.getuid()
ONE, TWO = "0000:18:00.0", "0000:88:00.0"
NVIDIA_SHARED = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")


class ContentsTestCase(HostTestCase):
    NODES = Nodes.FILES

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))

    def contents(
        self, *gpus: model.GPU, owner_uid: int = UID, more: Collection[str] = ()
    ) -> values.GuestContents:
        state = self.root / "state"
        return contents.contents(gpus, self.host.roots, state, owner_uid, more=more)

    def node(self, name: str) -> pathlib.Path:
        return self.host.roots.dev / name

    def two_nvidia_cards(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=1)
        self.host.add_gpu(TWO, "10de", "2335", minor=0)


class TestBuiltIn(ContentsTestCase):
    def test_two_cards_in_any_order(self) -> None:
        self.two_nvidia_cards()
        both = self.contents(card(ONE), card(TWO))
        self.assertEqual(
            sorted({"/dev/nvidia0", "/dev/nvidia1", *NVIDIA_SHARED}), sorted(both.nodes)
        )
        self.assertEqual(both, self.contents(card(TWO), card(ONE)))

    def test_what_may_be_absent(self) -> None:
        self.host.add_gpu(ONE, "10de", "2335", minor=1, mig=[(1, 0)])
        for path in (self.node("nvidia-uvm-tools"), *self.node("nvidia-caps").iterdir()):
            path.unlink()
        self.assertEqual(
            ("/dev/nvidia-uvm", "/dev/nvidia1", "/dev/nvidiactl"), self.contents(card(ONE)).nodes
        )
        for name in ("nvidia1", "nvidiactl", "nvidia-uvm"):
            self.node(name).rename(self.root / "away")
            error = self.assertRaises(exception.DeviceNodeMissing, self.contents, card(ONE))
            self.assertEqual((ONE, f"/dev/{name}"), (error.address, error.path))
            (self.root / "away").rename(self.node(name))
        self.host.bind(ONE, "vfio-pci")
        error = self.assertRaises(exception.DeviceNodeMissing, self.contents, card(ONE, "vfio-pci"))
        self.assertIn(ONE, str(error))
        self.assertIn("vfio-pci", str(error))


class CDITestCase(ContentsTestCase):
    """Two NVIDIA cards, with minors 1 and 0, and what nvidia-ctk writes of them"""

    def setUp(self) -> None:
        super().setUp()
        self.two_nvidia_cards()
        for minor, address in ((0, TWO), (1, ONE)):
            for name in (f"card{minor}", f"renderD{128 + minor}"):
                (self.host.path(address) / "drm" / name).mkdir(parents=True)
                fake.write(self.node(f"dri/{name}"), b"")
        self.driver = self.root / "driver"
        self.document = fake.nvidia(self.driver, [0, 1])
        self.edits: dict[str, Any] = self.document["containerEdits"]

    def given(
        self, *addresses: str, owner_uid: int = UID, more: Collection[str] = ()
    ) -> values.GuestContents:
        fake.save(self.host.roots.cdi_spec_dirs[1] / "nvidia.yaml", self.document)
        return self.contents(*map(card, addresses), owner_uid=owner_uid, more=more)

    def targets(self) -> dict[str, str]:
        return {mount.target: mount.source for mount in self.given(ONE).mounts}

    def add_mount(self, target: str, source: str = "") -> pathlib.Path:
        path = self.driver / (source or target.lstrip("/"))
        fake.write(path, b"x")
        self.edits["mounts"].append({"hostPath": str(path), "containerPath": target})
        return path


class TestNodes(CDITestCase):
    def test_the_cards_and_the_shared(self) -> None:
        own = ("/dev/nvidia1", "/dev/dri/card1", "/dev/dri/renderD129")
        self.assertEqual({*own, *NVIDIA_SHARED}, set(self.given(ONE).nodes))

    def test_nothing_of_another_card_nor_of_all(self) -> None:
        dropped = (
            *("/dev/nvidia0", "/dev/dri/card0", "/dev/dri/by-path/pci-0000:88:00.0-card"),
            *("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap99"),
            *("/dev/nvidia-caps-imex-channels/channel0", "/dev/nvidia-nvswitchctl"),
            *("/dev/../dev/nvidia0", "//dev/nvidia0"),
            # What no card's node is may lead to all of them, or to the host.
            *("/dev/nvidia-modeset", "/dev/nvidia-fs0", "/dev/gdrdrv", "/dev/infiniband/uverbs0"),
            *("/dev/kvm", "/dev/vfio/vfio", "/dev/mem", "/dev/nvidia-vgpu0", "/dev/kfd"),
        )
        for path in dropped:
            if not os.path.lexists(self.root / path.lstrip("/")):
                fake.write(self.root / path.lstrip("/"), b"")
            self.edits["deviceNodes"].append({"path": path})
        edits = self.given(ONE)
        self.assertEqual([], [node for node in edits.nodes if node in dropped])
        self.assertNotEqual((), edits.mounts)

    def test_another_card_under_an_innocent_name(self) -> None:
        self.edits["deviceNodes"].append({"path": "/dev/gpu", "hostPath": "/dev/nvidia0"})
        fake.write(self.node("gpu"), b"")
        edits = self.given(ONE)
        self.assertNotIn("/dev/gpu", edits.nodes)
        self.assertNotEqual((), edits.mounts)

    def test_modeset_where_it_is_asked_for(self) -> None:
        self.assertNotIn(nodes.MODESET, self.given(ONE).nodes)
        more = self.given(ONE, more=[nodes.MODESET]).nodes
        self.assertEqual((True, False), (nodes.MODESET in more, "/dev/nvidia0" in more))
        self.edits["deviceNodes"] = [{"path": "/dev/nvidiactl"}]
        more = self.given(ONE, more=[nodes.MODESET]).nodes
        self.assertEqual((False, True), (nodes.MODESET in more, "/dev/nvidia-uvm" in more))

    def test_what_libvirt_cannot_give(self) -> None:
        for node in (
            {"path": "/dev/nvidia-uvm", "hostPath": "/run/driver/dev/nvidia-uvm"},
            {"path": "/dev/nvidia-uvm", "type": "b"},
            {"path": "/tmp/nvidia-uvm", "hostPath": "/dev/nvidia-uvm"},
            {"path": "/dev/nvidia1", "hostPath": "/dev/nvidia0"},
        ):
            self.edits["deviceNodes"] = [node]
            edits = self.given(ONE)
            self.assertEqual({"/dev/nvidia1", *NVIDIA_SHARED}, set(edits.nodes))
            self.assertEqual(((), ()), (edits.mounts, edits.env))
            self.assertIn(f"not used for GPU {ONE}", self.log.output)
            self.assertIn(node["path"], self.log.output)
            self.assertIn("Correct that node in the file", self.log.output)

    def test_a_driver_that_is_in_a_container_itself(self) -> None:
        """NVIDIA's GPU Operator writes hostPath so (nvidia-ctk cdi generate --dev-root)."""
        inside = self.root / "run/nvidia/driver/dev/nvidia1"
        inside.parent.mkdir(parents=True)
        self.node("nvidia1").unlink()
        self.node("nvidia1").symlink_to("/dev/null")
        self.edits["deviceNodes"] = [{"path": "/dev/nvidia1", "hostPath": str(inside)}]
        for device, used in (("/dev/null", True), ("/dev/zero", False), ("/nowhere", False)):
            inside.symlink_to(device)
            edits = self.given(ONE)
            self.assertIn("/dev/nvidia1", edits.nodes)
            self.assertEqual(used, edits.mounts != ())
            inside.unlink()


class TestFiles(CDITestCase):
    def test_other_files_where_any_image_can_have_them(self) -> None:
        targets = self.targets()
        self.assertEqual(
            {"/usr/lib/nova-gpu", "/usr/bin/nvidia-smi", "/usr/share/nvidia"}, targets.keys()
        )
        self.assertEqual(str(self.driver / "usr/bin/nvidia-smi"), targets["/usr/bin/nvidia-smi"])
        folder = pathlib.Path(targets["/usr/share/nvidia"])
        self.assertEqual(b"optix", (folder / "nvoptix.bin").read_bytes())
        self.assertTrue((folder / fake.VERSION / "profiles").is_file())
        self.assertIn("driver's file /etc/vulkan/icd.d/nvidia_icd.json", self.log.output)

    def test_a_library_in_usr_lib_is_a_library(self) -> None:
        self.add_mount("/usr/lib64/libnvcuvid.so.570")
        targets = self.targets()
        self.assertNotIn("/usr/lib64/libnvcuvid.so.570", targets)
        self.assertIn("libnvcuvid.so.570", os.listdir(targets["/usr/lib/nova-gpu"]))

    def test_a_folder(self) -> None:
        path = self.add_mount("/opt/tools/x").parent
        self.edits["mounts"][-1] = {"hostPath": str(path), "containerPath": "/opt/tools"}
        self.assertEqual(str(path), self.targets()["/opt/tools"])

    def test_a_link_is_followed_once(self) -> None:
        path = self.add_mount("/usr/bin/tool")
        link = path.with_name("link")
        link.symlink_to(path)
        self.edits["mounts"][-1]["hostPath"] = str(link)
        self.assertEqual(str(path), self.targets()["/usr/bin/tool"])

    def test_targets_that_are_refused(self) -> None:
        targets = (
            *("/", "/etc/passwd", "/dev", "/dev/null", "/proc/driver/nvidia/params", "/sys"),
            *("/etc", "/usr", "/usr/bin", "/usr/lib/", "//etc//shadow", "/etc/ld.so.preload"),
            *("/usr/share/nvidia/../../../etc/passwd", "/usr/lib/nova-gpu/libx.so.1"),
            "/usr/lib/nova-gpu",
        )
        expected = self.targets()
        for index, target in enumerate(targets):
            self.add_mount(target, source=f"bad{index}")
        self.assertEqual(expected, self.targets())
        for index, target in enumerate(targets):
            plain = os.path.normpath(target.replace("//", "/"))
            self.assertIn(f"{self.driver}/bad{index} at {plain}", self.log.output)

    def test_sources_that_are_refused(self) -> None:
        expected = self.targets()
        self.add_mount("/usr/bin/evil").chmod(0o666)
        os.mkfifo(self.driver / "socket")
        self.edits["mounts"].append(
            {"hostPath": f"{self.driver}/socket", "containerPath": "/usr/bin/socket"}
        )
        if not UID:  # only root can give files away
            os.chown(self.add_mount("/usr/bin/foreign"), 1, 1)
        self.assertEqual(expected, self.targets())
        for text in ("0666", "a way to the host", *(["uid 1"] if not UID else [])):
            self.assertIn(text, self.log.output)

    def test_specifications_that_are_refused(self) -> None:
        self.assertNotUsed("uid", owner_uid=UID + 1)
        self.document["cdiVersion"] = "2.0.0"
        self.assertNotUsed("newer major version")

    def test_that_of_others_keeps_no_guest_back(self) -> None:
        other = {"cdiVersion": "2.0.0", "devices": [{"path": "/dev/nvidia11"}]}
        fake.save(self.host.roots.cdi_spec_dirs[0] / "other.json", other)
        self.assertTrue(self.given(ONE).mounts)

    def assertNotUsed(self, reason: str, owner_uid: int = UID) -> None:
        """No guest starts without the driver's files; its user is told so, the operator why."""
        error = self.assertRaises(exception.DeviceUnavailable, self.given, ONE, owner_uid=owner_uid)
        self.assertIn("/var/run/cdi", str(error))
        self.assertIn(reason, str(error))
        text = error.user_text
        self.assertIn("CDI file with the driver's files for it cannot be used", text)
        self.assertNotIn("/var/run/cdi", text)
        self.assertIn(
            reason, contents.obstacle(card(ONE), self.host.roots, "nvidia", owner_uid) or ""
        )

    def test_a_specification_older_than_the_driver(self) -> None:
        (self.driver / f"usr/lib/x86_64-linux-gnu/libcuda.so.{fake.VERSION}").unlink()
        error = self.assertRaises(exception.DeviceUnavailable, self.given, ONE)
        self.assertIn(f"libcuda.so.{fake.VERSION}", str(error))
        self.assertIn("nvidia.yaml", str(error))
        reason = contents.obstacle(card(ONE), self.host.roots, "nvidia", UID) or ""
        self.assertIn(f"libcuda.so.{fake.VERSION}: No such file", reason)
        self.assertIn("write that file again", reason)


class TestEnv(CDITestCase):
    def test_with_the_libraries_after_the_specifications_own_path(self) -> None:
        own = ("LD_LIBRARY_PATH", "/usr/lib/nova-gpu")
        more = (("NVIDIA_CTK_LIBCUDA_DIR", fake.LIBDIR), ("NVIDIA_VISIBLE_DEVICES", "void"))
        self.assertEqual((own, *more), self.given(ONE, TWO).env)
        self.edits["env"] = ["LD_LIBRARY_PATH=/opt/lib", "A=1", "A=2"]
        self.assertEqual(
            (("A", "2"), ("LD_LIBRARY_PATH", "/opt/lib:/usr/lib/nova-gpu")), self.given(ONE).env
        )


class TestInstances(ContentsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(ONE, "10de", "2335", minor=0, mig=[(9, 0), (10, 0)])
        self.host.add_gpu(TWO, "10de", "2335", minor=1, mig=[(9, 0)])
        self.driver = self.root / "driver"
        self.document = fake.nvidia(self.driver, [0, 1])

    def instance(self, card: str, *numbers: int) -> values.GuestContents:
        slots = [Slot.parse(f"{card}/1g.18gb/{number}") for number in numbers]
        return contents.contents((), self.host.roots, self.root / "state", UID, slots)

    def caps(self, minor: int, gpu_instance: int) -> set[str]:
        numbers = (nvidia.cap_minor(minor, gpu_instance, *ci) for ci in ((), (0,)))
        return {f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers}

    def test_nodes(self) -> None:
        own = {"/dev/nvidia0", *self.caps(0, 10), *NVIDIA_SHARED}
        self.assertEqual(own, set(self.instance(ONE, 1000).nodes))
        both = own | self.caps(0, 9)
        self.assertEqual(both, set(self.instance(ONE, 1000, 900).nodes))

    def test_beside_a_whole_card(self) -> None:
        slots = [Slot.parse(f"{ONE}/1g.18gb/900")]
        root = self.root / "state"
        edits = contents.contents([card(TWO)], self.host.roots, root, UID, slots)
        own = {"/dev/nvidia0", *self.caps(0, 9), "/dev/nvidia1", *self.caps(1, 9)}
        self.assertEqual({*own, *NVIDIA_SHARED}, set(edits.nodes))

    def test_none_without_all_that_leads_to_it(self) -> None:
        for node in (*sorted(self.caps(0, 10)), "/dev/nvidia0", "/dev/nvidia-uvm"):
            path = self.node(node.removeprefix("/dev/"))
            path.rename(self.root / "kept")
            error = self.assertRaises(exception.DeviceNodeMissing, self.instance, ONE, 1000)
            self.assertIn(node, str(error))
            (self.root / "kept").rename(path)
        error = self.assertRaises(exception.DeviceNodeMissing, self.instance, ONE, 1100)
        self.assertIn(f"{ONE}/1g.18gb/1100", str(error))

    def described(self, *instances: tuple[str, int, int]) -> None:
        """As nvidia-ctk names the instances of cards; each has a variable of its own here."""
        devices = self.document["devices"] = []
        for name, minor, gpu_instance in instances:
            paths = [f"/dev/nvidia{minor}", *sorted(self.caps(minor, gpu_instance))]
            edits = {"deviceNodes": [{"path": path} for path in paths], "env": [f"NAME={name}"]}
            devices.append({"name": name, "containerEdits": edits})
        every = [node for device in devices for node in device["containerEdits"]["deviceNodes"]]
        devices.append({"name": "all", "containerEdits": {"deviceNodes": every}})
        fake.save(self.host.roots.cdi_spec_dirs[1] / "nvidia.yaml", self.document)

    def test_the_device_that_describes_it_or_its_card(self) -> None:
        """Of the latter it has the driver's files."""
        every = [("0:0", 0, 9), ("0:1", 0, 10), ("1:0", 1, 9)]
        own = {"/dev/nvidia0", *self.caps(0, 10), *NVIDIA_SHARED}
        for described, name in ((every, "0:1"), (every[:1], "0:0")):
            self.described(*described)
            edits = self.instance(ONE, 1000)
            self.assertEqual(own, set(edits.nodes))
            self.assertEqual(name == "0:1", ("NAME", "0:1") in edits.env)
            self.assertIn(("LD_LIBRARY_PATH", libraries.TARGET), edits.env)
