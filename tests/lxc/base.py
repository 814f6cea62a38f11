# SPDX-License-Identifier: Apache-2.0
"""What a test asks of its cloud: inside the guests, and of Placement."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from typing import Any

from lab.cloud import guest, image, nodes
from tests.lxc import cloud, place

BLUEPRINT = {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}
PROVIDER = "_gpu_10de_1091_lxc"
NO_DRIVER = "No such device or address"  # ENXIO: the cgroup lets through to no driver
REFUSED = "Operation not permitted"  # EPERM, the device cgroup's word
_TRY = 'for node; do said=$( (: <"$node") 2>&1); echo "$node: $said"; done'


class LXCTestCase(cloud.Cloud):
    # Inside

    def run_inside(
        self, server: dict[str, Any], *argv: str, uid: int = 0
    ) -> subprocess.CompletedProcess[str]:
        return guest.run(self._lv, self.domain(server), argv, uid=uid)

    def told(self, server: dict[str, Any], opened: Sequence[nodes.Node]) -> list[str]:
        """What an ordinary user of the guest is told who opens each of these."""
        paths = [node.path for node in opened]
        tried = self.run_inside(server, "/bin/sh", "-c", _TRY, "try", *paths, uid=image.USER_ID)
        said = tried.stdout.splitlines()
        self.assertEqual(len(paths), len(said), tried.stdout + tried.stderr)
        return said

    def gpus_inside(self, server: dict[str, Any]) -> set[int]:
        """Which cards, by their index in ``place.GPUS``, an ordinary user of the guest can open."""
        said = self.told(server, [place.node(gpu) for gpu in range(len(place.GPUS))])
        return {gpu for gpu, word in enumerate(said) if NO_DRIVER in word}

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
        return sum(self.used(each["uuid"]) for each in providers if "_gpu_" in each["name"])

    def reserved(self) -> int:
        inventory = self._get_provider_inventory(self.gpu_provider(PROVIDER))
        return int(inventory["PGPU"]["reserved"])

    def _delete_everything(self) -> None:
        super()._delete_everything()
        self.wait_for("no GPU used", lambda: not self.usage())
