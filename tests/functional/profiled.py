# SPDX-License-Identifier: Apache-2.0
"""The cloud of KVM hosts, with cards whose virtual functions have vGPU types and no mdev."""

from __future__ import annotations

import fixtures

from nova_gpu.core.vgpu import vgpu as values
from tests.fixtures import hosts, profiling_kernel, vgpu
from tests.functional import divided, kvm
from tests.functional.base import Server

WHOLE = divided.WHOLE
# The first that starts a guest with a function that stays with NVIDIA's driver
LIBVIRT = 10000000
# The functions of the two cards
FIRST = [f"0000:3b:00.{number}" for number in range(4, 8)]
SECOND = [f"0000:af:00.{number}" for number in range(4, 8)]


def slots(number: int, *functions: str) -> list[str]:
    """Of the type with that number of NVIDIA's"""
    return [f"{function}/nvidia-{number}/0" for function in functions]


class ProfiledServersTestBase(divided.DividedServersTestBase):
    """``kernels[name]`` gives the functions of a host their types."""

    MACHINE = "l40s-2"
    PRODUCT = "10de_26b9"

    def setUp(self) -> None:
        version = "nova.tests.fixtures.libvirt.FAKE_LIBVIRT_VERSION"
        self.useFixture(fixtures.MonkeyPatch(version, LIBVIRT))
        super().setUp()

    def prepare(self, host: hosts.Host) -> None:
        self.kernels[f"host{len(self.kernels) + 1}"] = self.useFixture(
            profiling_kernel.ProfilingKernel(host, vgpu.L40S)
        )

    def assertGuestHas(self, server: Server, places: list[values.Slot], host: str) -> None:
        domain = self.domain(server, host)
        functions = domain.xpath("devices/hostdev[@type='pci'][not(address)]")
        self.assertEqual(
            sorted(str(place.parent) for place in places), sorted(map(kvm.address, functions))
        )
        self.assertEqual(
            {"no"} if places else set(), {hostdev.get("managed") for hostdev in functions}
        )
        for place in places:
            self.assertEqual(place.type_id, f"nvidia-{self.kernels[host].made[str(place.parent)]}")
            driver = self.hosts[host].path(str(place.parent)) / "driver"
            self.assertEqual("nvidia", driver.resolve().name)
