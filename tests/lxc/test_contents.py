# SPDX-License-Identifier: Apache-2.0
"""What a guest gets beside the nodes, from the host's CDI specifications."""

from __future__ import annotations

from lab.cloud import image
from tests.fixtures import cdi
from tests.lxc import base, place


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
        (options,) = (each.split()[3] for each in mounts if each.split()[1] == path)
        return options.split(",")

    def _environment_of_init(self, server: dict[str, object]) -> dict[str, str]:
        text = self.run_inside(server, "/bin/cat", "/proc/1/environ").stdout
        words = dict(word.split("=", 1) for word in text.split("\0") if "=" in word)
        return {
            k: v for k, v in words.items() if k in ("NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
        }
