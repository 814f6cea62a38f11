# SPDX-License-Identifier: Apache-2.0
"""The cloud of KVM hosts, with cards that are given in parts."""

from __future__ import annotations

import re
from typing import Any

from nova_gpu.core.vgpu import vgpu as values
from tests.fixtures import dividing_kernel, hosts, vgpu
from tests.functional import kvm
from tests.functional.base import Server

FIRST, SECOND, WHOLE = "0000:3b:00.0", "0000:af:00.0", "0000:d8:00.0"


def slots(address: str, number: int, *numbers: int) -> list[str]:
    """Of the type with that number of NVIDIA's"""
    return [f"{address}/nvidia-{number}/{index}" for index in numbers]


class DividedServersTestBase(kvm.KVMServersTestBase):
    """``kernels[name]`` makes and removes the mediated devices of a host."""

    MACHINE = "grid-2"
    PRODUCT = "10de_1bb3"
    TYPES = vgpu.TESLA_P4

    def setUp(self) -> None:
        self.kernels: dict[str, Any] = {}
        super().setUp()

    def start_host(self, name: str = "host1", machine: str = "", **kwargs: Any) -> None:
        super().start_host(name, machine or self.MACHINE, **kwargs)

    def prepare(self, host: hosts.Host) -> None:
        for address in (FIRST, SECOND):
            vgpu.add_types(host, address, self.TYPES)
        self.kernels[f"host{len(self.kernels) + 1}"] = self.useFixture(
            dividing_kernel.DividingKernel(host)
        )

    def of_type(self, number: int, count: int = 1) -> str:
        """A flavor in Placement's words"""
        trait = f"trait:CUSTOM_GPU_VGPU_TYPE_NVIDIA_{number}"
        return self.flavor(**{"resources:VGPU": str(count), trait: "required"})

    def of_each(self, **words: str) -> str:
        """One that says what a vGPU must have: a flavor with words behind ``gpu:``"""
        return self.flavor(vgpus="= 1", **{f"gpu:{key}": words[key] for key in words})

    def assertVGPUs(self, server: Server, expected: list[str], host: str = "host1") -> None:
        """Nova's database, the guest's XML, the kernel and Placement say the same."""
        self.assertEqual("ACTIVE", self._show_server(server)["status"])
        self.assertEqual(sorted(expected), self.recorded(server))
        places = [values.Slot.parse(identifier) for identifier in expected]
        self.assertGuestHas(server, places, host)
        self.assertEqual({host: len(expected)} if expected else {}, self.allocated(server, "VGPU"))

    def assertGuestHas(self, server: Server, places: list[values.Slot], host: str) -> None:
        """By its XML, and by the kernel"""
        domain = self.domain(server, host)
        uuids = [values.device_uuid(server["id"], place) for place in places]
        mediated = domain.xpath("devices/hostdev[@type='mdev']")
        self.assertEqual(
            sorted(uuids), sorted(domain.xpath("devices/hostdev/source/address/@uuid"))
        )
        for hostdev in mediated:
            self.assertEqual(
                {"mode": "subsystem", "type": "mdev", "model": "vfio-pci"},
                {key: hostdev.get(key) for key in ("mode", "type", "model")},
            )
        self.assertEqual(set(), set(uuids) - set(self.kernels[host].made))

    def inventories(self, host: str = "host1") -> dict[int, tuple[int, int, int]]:
        """Total, reserved and used of each of the host's types, by NVIDIA's number"""
        url = f"/resource_providers?in_tree={self.compute_rp_uuids[host]}"
        providers = self.placement.get(url, version="1.14").body["resource_providers"]
        inventories = {}
        for provider in providers:
            if match := re.search(rf"_gpu_{self.PRODUCT}_vgpu_nvidia-(\d+)$", provider["name"]):
                inventories[int(match[1])] = self.counts(provider["uuid"])
        return inventories
