# SPDX-License-Identifier: Apache-2.0
"""The cloud of every test, on a libvirtd of its own with its LXC driver, and what is asked."""

from __future__ import annotations

import os
import pathlib
import subprocess
import time
from collections.abc import Collection, Sequence
from typing import Any

import fixtures

from lab.cloud import guest, image, libvirtd, nodes
from tests.cloud import base as cloud_base
from tests.cloud import leftovers
from tests.fixtures import hosts
from tests.lxc import place

IMAGE = cloud_base.IMAGE
ID_MAPS = ["0:100000:65536"]
BLUEPRINT = {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}
PROVIDER = "_gpu_10de_1091_lxc"
NO_DRIVER = "No such device or address"  # ENXIO: the cgroup lets through to no driver
REFUSED = "Operation not permitted"  # EPERM, the device cgroup's word
_TRY = 'for node; do said=$( (: <"$node") 2>&1); echo "$node: $said"; done'


class LXCTestCase(cloud_base.Cloud):
    FLAVOR = {"memory_mb": 64, "vcpu": 1, "disk": 1, "ephemeral": 0}  # noqa: RUF012

    # What a test class may say of its host
    UID_MAPS: Sequence[str] = ID_MAPS
    MACHINE = "fermi-8"

    def setUp(self) -> None:
        if place.FOLDER not in os.environ:
            self.skipTest("needs a libvirtd of its own: run python -m tests.lxc")
        # It runs already; the tests are in its mount namespace.
        self._lv = libvirtd.PrivateLibvirtd(place.folder(), ())
        self._state = pathlib.Path(self.useFixture(fixtures.TempDir(str(place.folder()))).path)
        self._state.chmod(0o711)
        self._host = hosts.build(self.MACHINE, self._state / "host")
        self._expect_nothing_left()
        super().setUp()

    def serve_images(self) -> None:
        content = (place.folder() / "image.raw").read_bytes()
        self.glance._imagedata[IMAGE] = content
        self.glance.images[IMAGE]["size"] = len(content)

    def set_host_flags(self) -> None:
        self.flags(use_cow_images=False)
        self.flags(
            virt_type="lxc",
            connection_uri="lxc:///",
            images_type="raw",
            uid_maps=list(self.UID_MAPS),
            gid_maps=list(self.UID_MAPS),
            # A guest that does not end by itself within this is a fault, but for one test.
            wait_soft_reboot_seconds=int(self.PATIENCE_S),
            group="libvirt",
        )
        self.flags(
            sysfs_root=str(self._host.roots.sysfs),
            proc_root=str(self._host.roots.proc),
            cdi_spec_dirs=[str(self._state / "cdi")],
            nvml=False,
            group="gpu",
        )

    def _expect_nothing_left(self) -> None:
        """Registered first and so run last, when every service has ended."""
        lv = self._lv
        # Those of another libvirtd's guests look like ours, once we have had one of that name.
        self._before = before = {*lv.leftovers(), *leftovers.guest_groups()}
        nodes = list(leftovers.nodes())

        def expect() -> None:
            deadline = time.monotonic() + self.PATIENCE_S
            while set(lv.leftovers()) - before and time.monotonic() < deadline:
                time.sleep(0.2)
            left = set(lv.leftovers()) - before
            for leftover in leftovers.remove_empty_groups(left):
                print(f"libvirt left the empty {leftover}; its log ends so:\n{lv.log_end()}")
                left.remove(leftover)
            for domain in lv.domains():
                for verb in ("destroy", "undefine"):
                    subprocess.run(lv.enter(["virsh", "-qc", "lxc:///", verb, domain]))
            self.assertEqual([], sorted(left), "left behind by this test")
            self.assertEqual(nodes, list(leftovers.nodes()), "the host's device nodes")

        self.addCleanup(expect)

    # Inside

    def run_inside(
        self, server: dict[str, Any], *argv: str, uid: int = 0
    ) -> subprocess.CompletedProcess[str]:
        return guest.run(self._lv, self.domain(server), argv, uid=uid)

    def told(self, server: dict[str, Any], opened: Sequence[nodes.Node]) -> list[str]:
        """What an ordinary user of the guest is told who opens each of these."""
        paths = [node.path for node in opened]
        tried = self.run_inside(server, "/bin/sh", "-c", _TRY, "try", *paths, uid=image.USER_ID)
        lines = tried.stdout.splitlines()
        self.assertEqual(len(paths), len(lines), tried.stdout + tried.stderr)
        return lines

    def gpus_inside(self, server: dict[str, Any]) -> set[int]:
        """Which cards, by their index in ``place.GPUS``, an ordinary user of the guest can open."""
        lines = self.told(server, [place.node(gpu) for gpu in range(len(place.GPUS))])
        return {gpu for gpu, word in enumerate(lines) if NO_DRIVER in word}

    def assertGPUs(self, server: dict[str, Any], expected: Collection[int]) -> None:
        """Exactly these cards: nodes and device cgroup asked in the guest, Placement outside."""
        self.assertEqual(set(expected), self.gpus_inside(server))
        listed = self.run_inside(server, "/bin/sh", "-c", "ls /dev | grep nvidia").stdout.split()
        names = [place.node(gpu).name for gpu in expected]
        self.assertEqual(sorted([*names, *(place.SHARED if names else ())]), sorted(listed))
        others = [gpu for gpu in range(len(place.GPUS)) if gpu not in expected]
        self.assertRefused(server, [place.node(gpu) for gpu in others])
        self.assertEqual(len(expected), self.allocated(server))

    def assertRefused(self, server: dict[str, Any], others: Sequence[nodes.Node]) -> None:
        """The guest's device cgroup lets nobody open these."""
        numbers = guest.open_from_cgroup(self._lv, self.domain(server), others)
        for node, number in zip(others, numbers, strict=True):
            self.assertEqual(REFUSED, os.strerror(number), f"another's {node.path}")

    # Nova and Placement

    def usage(self) -> int:
        """GPUs of any kind"""
        providers = self._get_all_providers()
        return sum(
            self.used(provider["uuid"]) for provider in providers if "_gpu_" in provider["name"]
        )

    def reserved(self) -> int:
        inventory = self._get_provider_inventory(self.gpu_provider(PROVIDER))
        return int(inventory["PGPU"]["reserved"])

    def _delete_everything(self) -> None:
        super()._delete_everything()
        self.wait_for("no GPU used", lambda: not self.usage())
