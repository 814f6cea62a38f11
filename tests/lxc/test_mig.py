# SPDX-License-Identifier: Apache-2.0
"""Two tenants side by side on one card, each with a MIG instance of it."""

from __future__ import annotations

import re
from typing import Any

import fixtures

from lab.cloud import guest, nodes
from nova_gpu.core.model import MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import of_slot
from nova_gpu.host.nvidia import nvml
from tests.fixtures import nvidia
from tests.lxc import base, place

CARD = "0000:19:00.0"
PROFILE = "1g.18gb"


class MIGTest(base.LXCTestCase):
    MACHINE = "h200-8"

    def prepare_host(self) -> None:
        self._host.set_mig(CARD, [(each, 0) for each in place.INSTANCES])
        layout = tuple(MIGInstance(each, 0, PROFILE, 16384, 1) for each in place.INSTANCES)
        told = {PciAddress.parse(CARD): nvml.NvmlFacts(mig=layout)}
        self.useFixture(
            fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.query", lambda timeout_s: told)
        )
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.health", lambda *_: {}))
        self.flags(nvml=True, group="gpu")

    def assertInstance(self, server: dict[str, Any], gpu_instance: int) -> None:
        """Its own nodes open, for an ordinary user; all others are not there, and refused by the
        device cgroup even so."""
        capabilities = ((gpu_instance,), (gpu_instance, 0))
        own = nodes.pretend_nvidia_caps(nvidia.cap_minor(0, *each) for each in capabilities)
        card, *_ = nodes.pretend_nvidia([0])
        said = self.told(server, [card, *own])
        self.assertEqual([], [each for each in said if base.NO_DRIVER not in each])
        listed = self.run_inside(server, "/bin/ls", "/dev/nvidia-caps").stdout.split()
        self.assertEqual(sorted(each.name.partition("/")[2] for each in own), sorted(listed))
        listed = self.run_inside(server, "/bin/sh", "-c", "ls -d /dev/nvidia*").stdout.split()
        expected = {card.path, "/dev/nvidia-caps", *(f"/dev/{each}" for each in place.SHARED)}
        self.assertEqual(expected, set(listed))
        others = [each for each in nodes.pretend_nvidia_caps(place.CAPS) if each not in own]
        others += nodes.pretend_nvidia([1])[:1]
        self.assertRefused(server, others)
        found = guest.escapes(self._lv, self.domain(server), others[-2])
        self.assertEqual([], [each for each in found if not each.refused])

    def _gpu_instance_of(self, server: dict[str, Any]) -> int:
        xml = self._lv.virsh("dumpxml", self.domain(server))
        found = re.search(f"{CARD}/{PROFILE}/([0-9]+)", xml)
        assert found
        gpu_instance, _ = of_slot(int(found[1]))
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
