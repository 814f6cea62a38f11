# SPDX-License-Identifier: Apache-2.0
"""What a guest gets besides nodes of cards: what CDI files name, and parts of a card."""

from __future__ import annotations

import re
from typing import Any

import fixtures

from lab.cloud import guest, image, nodes
from nova_gpu.core.model import MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import of_slot
from nova_gpu.host.nvidia import nvml
from tests.fixtures import cdi, nvidia
from tests.lxc import base, place

CARD = "0000:19:00.0"
PROFILE = "1g.18gb"


class CDITest(base.LXCTestCase):
    def prepare_host(self) -> None:
        driver = self._state / "driver"
        for folder in (driver, driver / "bin", driver / "lib"):
            folder.mkdir()
            folder.chmod(0o755)
        smi, library = "#!/bin/sh\necho smi of the host\n", "no ELF"
        files = {"bin/nvidia-smi": smi, "lib/libcuda.so.570": library}
        for name, content in files.items():
            (driver / name).write_text(content)
            (driver / name).chmod(0o755)
        devices = [
            {"name": str(gpu), "containerEdits": {"deviceNodes": [{"path": place.node(gpu).path}]}}
            for gpu in range(len(place.GPUS))
        ]
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
                "mounts": [
                    {
                        "hostPath": str(driver / name),
                        "containerPath": f"/usr/{name}",
                        "options": ["ro", "nosuid", "nodev", "bind"],
                    }
                    for name in files
                ],
            },
        }
        cdi.save(self._state / "cdi/nvidia.json", spec)

    def test_files_libraries_environment(self) -> None:
        server = self.boot_with(2)

        for gpu in (0, 1):
            self.assertIn(gpu, self.gpus_inside(server))
        shown = self.run_inside(server, "/usr/bin/nvidia-smi", uid=image.USER_ID)
        self.assertEqual("smi of the host\n", shown.stdout)
        library = self.run_inside(server, "/bin/cat", "/usr/lib/nova-gpu/libcuda.so.570")
        self.assertEqual("no ELF", library.stdout)
        self.assertEqual(
            {"NVIDIA_VISIBLE_DEVICES": "void", "LD_LIBRARY_PATH": "/usr/lib/nova-gpu"},
            self._environment_of_init(server),
        )
        # Not by trying: the host's files are root's, which is nobody in the guest.
        for path in ("/usr/bin/nvidia-smi", "/usr/lib/nova-gpu"):
            self.assertIn("ro", self._mount_options(server, path), path)

    def _mount_options(self, server: dict[str, object], path: str) -> list[str]:
        mounts = self.run_inside(server, "/bin/cat", "/proc/mounts").stdout.splitlines()
        (options,) = (mount.split()[3] for mount in mounts if mount.split()[1] == path)
        return options.split(",")

    def _environment_of_init(self, server: dict[str, object]) -> dict[str, str]:
        text = self.run_inside(server, "/bin/cat", "/proc/1/environ").stdout
        words = dict(word.split("=", 1) for word in text.split("\0") if "=" in word)
        return {
            k: v for k, v in words.items() if k in ("NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
        }


class MIGTest(base.LXCTestCase):
    """Two tenants side by side on one card, each with a MIG instance of it"""

    MACHINE = "h200-8"

    def prepare_host(self) -> None:
        self._host.set_mig(CARD, [(gpu_instance, 0) for gpu_instance in place.INSTANCES])
        layout = tuple(
            MIGInstance(gpu_instance, 0, PROFILE, 16384, 1) for gpu_instance in place.INSTANCES
        )
        facts = {PciAddress.parse(CARD): nvml.NvmlFacts(mig=layout)}
        self.useFixture(
            fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.query", lambda timeout_s: facts)
        )
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.health", lambda *_: {}))
        self.flags(nvml=True, group="gpu")

    def assertInstance(self, server: dict[str, Any], gpu_instance: int) -> None:
        """Its own nodes open, for an ordinary user; all others are not there, and refused by the
        device cgroup even so."""
        capabilities = ((gpu_instance,), (gpu_instance, 0))
        own = nodes.pretend_nvidia_caps(
            nvidia.cap_minor(0, *capability) for capability in capabilities
        )
        card, *_ = nodes.pretend_nvidia([0])
        lines = self.told(server, [card, *own])
        self.assertEqual([], [line for line in lines if base.NO_DRIVER not in line])
        listed = self.run_inside(server, "/bin/ls", "/dev/nvidia-caps").stdout.split()
        self.assertEqual(sorted(node.name.partition("/")[2] for node in own), sorted(listed))
        listed = self.run_inside(server, "/bin/sh", "-c", "ls -d /dev/nvidia*").stdout.split()
        expected = {card.path, "/dev/nvidia-caps", *(f"/dev/{name}" for name in place.SHARED)}
        self.assertEqual(expected, set(listed))
        others = [node for node in nodes.pretend_nvidia_caps(place.CAPS) if node not in own]
        others += nodes.pretend_nvidia([1])[:1]
        self.assertRefused(server, others)
        escapes = guest.escapes(self._lv, self.domain(server), others[-2])
        self.assertEqual([], [escape for escape in escapes if not escape.refused])

    def _gpu_instance_of(self, server: dict[str, Any]) -> int:
        xml = self._lv.virsh("dumpxml", self.domain(server))
        match = re.search(f"{CARD}/{PROFILE}/([0-9]+)", xml)
        assert match
        gpu_instance, _ = of_slot(int(match[1]))
        return gpu_instance

    def test_each_sees_its_own(self) -> None:
        flavor = self.flavor(vgpus="= 1", vgpu_type=f"s== {PROFILE}")
        servers = {}
        for _ in place.INSTANCES:
            server = self.boot(flavor)
            servers[self._gpu_instance_of(server)] = server
        self.assertEqual(set(place.INSTANCES), set(servers))
        for gpu_instance, server in servers.items():
            self.assertInstance(server, gpu_instance)
        self.restart_compute()
        first, second = place.INSTANCES
        self.delete(servers[first])
        self.assertInstance(servers[second], second)
        self.assertInstance(self.boot(flavor), first)
