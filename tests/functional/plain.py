# SPDX-License-Identifier: Apache-2.0
"""The cloud of KVM hosts, with cards whose virtual functions have no types."""

from __future__ import annotations

from nova_gpu.core.vgpu import vgpu as values
from tests.fixtures import hosts
from tests.functional import divided, kvm, verifying
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND

FLAVOR = {"vgpus": "= 1", "vgpu_type": "s== vf"}


def functions(card: str, *numbers: int) -> list[str]:
    return [card.replace(".0", f".{number}") for number in numbers]


def slots(card: str, *numbers: int) -> list[str]:
    return [f"{function}/vf/0" for function in functions(card, *numbers)]


class PlainServersTestBase(verifying.Verifying, divided.DividedServersTestBase):
    MACHINE = "flex-2"
    PROVIDER = "_gpu_8086_56c0_vgpu_vf"

    def prepare(self, host: hosts.Host) -> None:
        for card in (FIRST, SECOND):
            host.set_autoprobe(card, enabled=False)

    def assertGuestHas(self, server: Server, places: list[values.Slot], host: str) -> None:
        hostdevs = self.domain(server, host).xpath("devices/hostdev[@type='pci']")
        self.assertEqual(
            sorted(str(place.parent) for place in places), sorted(map(kvm.address, hostdevs))
        )
        self.assertEqual({"yes"} if places else set(), {e.get("managed") for e in hostdevs})

    def vgpus(self, host: str = "host1") -> tuple[int, int, int]:
        """Total, reserved and used"""
        return self.counts(self._get_provider_uuid_by_name(f"{host}{self.PROVIDER}"))
