# SPDX-License-Identifier: Apache-2.0
"""The cloud of LXC hosts, with cards that the operator has divided into MIG instances."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import fixtures

from nova_gpu.core.model import MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import slot_number
from nova_gpu.host.nvidia import nvml
from tests.fixtures import hosts, nvidia
from tests.functional import base
from tests.functional.base import Server

FIRST, SECOND, WHOLE = "0000:19:00.0", "0000:3b:00.0", "0000:4c:00.0"
_OTHERS = ("0000:5d:00.0", "0000:9b:00.0", "0000:bb:00.0", "0000:cb:00.0", "0000:db:00.0")
CARDS = (FIRST, SECOND, WHOLE, *_OTHERS)
SMALL, LARGE = "1g.18gb", "3g.71gb"
MEMORY_MIB = {SMALL: 16384, LARGE: 71680, "7g.141gb": 143771}
# GPU instance, compute instance, profile
LAYOUT = ((1, 0, LARGE), (9, 0, SMALL), (10, 0, SMALL), (11, 0, SMALL))
SHARED = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")

Layout = Sequence[tuple[int, int, str]]


def slot(card: str, gpu_instance: int, compute_instance: int, profile: str) -> str:
    return f"{card}/{profile}/{slot_number(gpu_instance, compute_instance)}"


def slots(card: str, profile: str, *gpu_instances: int) -> list[str]:
    """As sorted text"""
    return sorted(slot(card, gpu_instance, 0, profile) for gpu_instance in gpu_instances)


def nodes_of(minor: int, gpu_instance: int, compute_instance: int = 0) -> list[str]:
    """What leads to one instance"""
    caps = (
        nvidia.cap_minor(minor, gpu_instance),
        nvidia.cap_minor(minor, gpu_instance, compute_instance),
    )
    return [f"/dev/nvidia{minor}", *(f"/dev/nvidia-caps/nvidia-cap{cap}" for cap in caps)]


class MIGServersTestBase(base.GPUServersTestBase):
    """``layouts``: NVML's instances of the cards; ``None`` for one that is not in MIG mode.
    Where it is silent, ``layouts`` is empty."""

    MACHINE = "h200-8"
    PROVIDER = "_gpu_10de_2335_vgpu_"

    def setUp(self) -> None:
        self.layouts: dict[str, Layout | None] = {}
        self.queries = 0
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.query", self._query))
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.health", lambda *_: {}))
        self.flags(nvml=True, group="gpu")

    def start_host(self, name: str = "host1", machine: str = "", **kwargs: Any) -> None:
        super().start_host(name, machine or self.MACHINE, **kwargs)

    def prepare(self, host: hosts.Host) -> None:
        """Two cards are divided, the others are whole."""
        self.layouts = dict.fromkeys(CARDS)
        for card in (FIRST, SECOND):
            self.divide(card, LAYOUT, host)

    def divide(self, card: str, layout: Layout, host: hosts.Host | None = None) -> None:
        """As ``nvidia-smi mig`` does, of a card that may have had another layout"""
        (host or self.hosts["host1"]).set_mig(card, [(gi, ci) for gi, ci, _ in layout])
        self.layouts[card] = layout

    def _query(self, timeout_s: float) -> dict[PciAddress, nvml.NvmlFacts]:
        self.queries += 1
        return {
            PciAddress.parse(card): nvml.NvmlFacts(
                memory_mib=143771,
                mig=None if layout is None else tuple(sorted(map(_instance, layout))),
            )
            for card, layout in self.layouts.items()
        }

    def of_type(self, profile: str, count: int = 1) -> str:
        return self.flavor(vgpus=f"= {count}", vgpu_type=f"s== {profile}")

    def given(self, server: Server, host: str = "host1") -> list[str]:
        """The NVIDIA nodes of its guest, each of which it must have twice: as libvirt's, for the
        control group, and as the host's bound over it"""
        domain = self.domain(server, host)
        made = domain.xpath("devices/hostdev[@type='misc']/source/char/text()")
        bound = [
            folder for folder in domain.xpath("devices/filesystem/source/@dir") if "/dev/" in folder
        ]
        self.assertEqual(sorted(made), sorted(bound))
        return sorted(set(made) - set(SHARED))

    def assertInstances(
        self, server: Server, expected: Iterable[str], nodes: Iterable[str], host: str = "host1"
    ) -> None:
        """Nova's database, the guest's XML and Placement say the same."""
        slots = sorted(expected)
        self.assertEqual("ACTIVE", self._show_server(server)["status"])
        self.assertEqual(slots, self.recorded(server))
        self.assertEqual(sorted(set(nodes)), self.given(server, host))
        self.assertEqual({host: len(slots)} if slots else {}, self.allocated(server, "VGPU"))

    def vgpus(self, profile: str = SMALL, host: str = "host1") -> tuple[int, int, int]:
        """Total, reserved and used"""
        name = f"{host}{self.PROVIDER}{profile}"
        return self.counts(self._get_provider_uuid_by_name(name))


def _instance(fields: tuple[int, int, str]) -> MIGInstance:
    gpu_instance, compute_instance, profile = fields
    return MIGInstance(gpu_instance, compute_instance, profile, MEMORY_MIB[profile], slices=1)
