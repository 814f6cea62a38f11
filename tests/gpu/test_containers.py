# SPDX-License-Identifier: Apache-2.0
"""Whether what a container is given for a card is what CUDA needs, and no more than that."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Sequence
from typing import Any

from nova_gpu.core.container import GuestContents
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, slot_number
from nova_gpu.host import nodes
from nova_gpu.host.container import cdi, contents
from tests.gpu import machine

_PROGRAM = pathlib.Path(__file__).with_name("cuda.py")
# What any program may need, and no card's
_COMMON = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/shm")
# In a mount namespace of its own, which ends with it: $1 becomes /dev, with all until "--" in it.
# What is bound there opens; a node that is made there does not: NVIDIA's libraries make what they
# miss, as the device cgroup lets nobody do in a container.
_DEV = """
set -e
dev=$1; shift
mount -t tmpfs -o mode=755,nodev none "$dev"
while [ "$1" != -- ]; do
    there=$dev/${1#/dev/}
    mkdir -p "$(dirname "$there")"
    if [ -d "$1" ]; then mkdir -p "$there"; else : > "$there"; fi
    mount --bind "$1" "$there"
    shift
done
shift
mount --rbind "$dev" /dev
exec "$@"
"""


def _obstacle() -> str | None:
    """Why there can be no mount namespace, ``None`` where there can"""
    try:
        done = subprocess.run(_namespace("true"), capture_output=True, text=True)
    except OSError as error:
        return f"no mount namespace can be made: {error}"
    return f"no mount namespace can be made: {done.stderr.strip()}" if done.returncode else None


def _namespace(*command: str) -> list[str]:
    return ["unshare", "--mount", "--propagation", "private", *command]


def _cuda(paths: Sequence[str], folder: pathlib.Path) -> str:
    """What ``cuda.py`` prints where /dev has *paths* and what is no device of a card"""
    dev = folder / "dev"
    dev.mkdir(exist_ok=True)
    present = [node for node in (*_COMMON, *paths) if os.path.exists(node)]
    program = [sys.executable, str(_PROGRAM)]
    argv = _namespace("sh", "-c", _DEV, "sh", str(dev), *present, "--", *program)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=machine.TIMEOUT_S)
    if not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, argv, stderr=done.stderr)
    return done.stdout


class NodesTest(unittest.TestCase):
    def setUp(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("needs root: it makes a mount namespace")
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        # The vendor's tool makes nodes that are not there yet, as the start of a guest has it do.
        nodes.make_nodes(machine.gpus(), machine.ROOTS)

    def given(self) -> GuestContents:
        """What a container with all cards gets, in parts where they are divided"""
        whole = [gpu for gpu in machine.gpus() if gpu.mig is None]
        numbers = (
            (gpu.address, slot_number(instance.gpu_instance, instance.compute_instance))
            for gpu in machine.gpus()
            for instance in gpu.mig or ()
        )
        slots = [
            Slot(address, "whole", number) for address, number in numbers if number is not None
        ]
        return contents.contents(whole, machine.ROOTS, self.folder, os.geteuid(), slots)

    def addresses(self) -> set[str]:
        """The cards on which something can be computed: one in MIG mode has instances for it"""
        return {str(gpu.address) for gpu in machine.gpus() if gpu.mig is None or gpu.mig}

    def computed(self, name: str, paths: Sequence[str]) -> dict[str, Any]:
        if reason := _obstacle():
            self.skipTest(reason)
        text = _cuda(paths, self.folder)
        machine.keep(f"cuda-{name}.json", text)
        answer: dict[str, Any] = json.loads(text)
        return answer

    def test_all_that_is_needed(self) -> None:
        """In a /dev that has no other nodes CUDA finds every card, and computes on it."""
        answer = self.computed("with", self.given().nodes)
        self.assertIsNone(answer["error"])
        self.assertEqual(self.addresses(), set(map(str, map(PciAddress.parse, answer["cards"]))))

    def test_no_card_without_its_node(self) -> None:
        """Who has the nodes that all cards share, and a card's not, does not have the card."""
        own = {node for gpu in machine.gpus() for node in nodes.card_nodes(gpu, machine.ROOTS)}
        shared = [node for node in self.given().nodes if node not in own]
        self.assertEqual([], self.computed("without", shared)["cards"])


class CDITest(unittest.TestCase):
    def test_of_nvidia_ctk(self) -> None:
        """What nvidia-ctk writes describes every card, and nothing of it is refused."""
        if not shutil.which("nvidia-ctk"):
            self.skipTest("nvidia-ctk is not on PATH: install nvidia-container-toolkit-base")
        # It writes to its output what it would write to a file.
        text = machine.said("cdi.yaml", ["nvidia-ctk", "cdi", "generate", "--format=yaml"])
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        path = folder / "nvidia.yaml"
        path.write_bytes(text)
        described = {device.name: device for device in cdi.load(path, os.geteuid())}
        self.assertIn("nvidia.com/gpu=all", described)
        for gpu in machine.gpus():
            with self.subTest(address=gpu.address):
                own = nodes.own_nodes(gpu, machine.ROOTS)
                device = cdi.describing(own, described)
                assert device is not None
                paths = {node.path for node in device.edits.nodes}
                self.assertTrue(set(own) & paths)
                required = [
                    node
                    for node in nodes.shared_nodes(gpu.driver)
                    if nodes.is_required(node) and nodes.is_there(node, machine.ROOTS)
                ]
                self.assertLessEqual(set(required), paths)
                self.assertTrue(device.edits.mounts)

    def test_of_the_host(self) -> None:
        """Every file that the host has is read."""
        folders = [folder for folder in machine.ROOTS.cdi_spec_dirs if folder.is_dir()]
        files = [
            path
            for folder in folders
            for path in sorted(folder.iterdir())
            if path.suffix in (".json", ".yaml")
        ]
        if not files:
            text = ", ".join(map(str, machine.ROOTS.cdi_spec_dirs))
            self.skipTest(f"no CDI specification is in {text}")
        for path in files:
            with self.subTest(path=path):
                self.assertTrue(cdi.load(path))
