# SPDX-License-Identifier: Apache-2.0
"""What NVML adds to a host's groups, as far as Placement takes it."""

from __future__ import annotations

import dataclasses

import fixtures

from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import nvml
from tests.fixtures import nvml as machines
from tests.functional import alone, base

CARDS = [card.address for card in machines.h200()]


class NvmlTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.facts = nvml.NvmlFacts(memory_mib=143771, compute_capability=(9, 0))
        # No library without a card: tests/unit/host/nvidia/test_nvml.py has the real child process.
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_gpu.host.nvidia.nvml.query",
                lambda timeout_s: {PciAddress.parse(each): self.facts for each in CARDS},
            )
        )
        self.flags(nvml=True, group="gpu")

    def traits(self) -> set[str]:
        (uuid,) = self.groups().values()
        return set(self._get_provider_traits(uuid))

    def test_a_compute_capability_that_os_traits_does_not_know(self) -> None:
        self.start_host(machine="h200-8")
        trait = "CUSTOM_HW_GPU_CUDA_COMPUTE_CAPABILITY_V9_0"
        self.assertIn(trait, self.traits())
        server = self.boot(self.flavor(**{"gpus": "= 2", f"trait:{trait}": "required"}))
        self.assertGPUs(server, CARDS[:2])
        self.assertGPUs(self.boot(self.flavor()), [])
        self.assertInventory(used=2)


class DeadCardTest(alone.Alone, base.GPUServersTestBase):
    """One card of eight that NVIDIA's driver has and cannot use, by the real probe; its node is
    there, as are its files in /proc."""

    leaves = dict.fromkeys(("hold", "reserved"), "it stays dead")

    def setUp(self) -> None:
        super().setUp()
        self.cards = machines.h200()
        self.library = self.useFixture(machines.Library(*self.cards))
        self.flags(nvml=True, group="gpu")

    def test_what_its_driver_cannot_use(self) -> None:
        first, *others = self.cards

        def more(**lines: str) -> machines.Card:
            return dataclasses.replace(first, more=lines)

        for number, (said, reason) in enumerate(
            (
                ((), "NVML cannot open it (Not Found)"),  # RmInitAdapter failed
                ((more(pci=machines.LOST),), "NVIDIA's driver has lost it"),
                ((more(compute_mode="2"),), "its compute mode is PROHIBITED"),  # nvidia-smi -c 2
                ((more(memory=machines.NOT_SUPPORTED),), "its memory is not known"),
            )
        ):
            with self.subTest(reason):
                self.library.say(*said, *others)
                host = f"host{number}"
                self.start_host(host, machine="h200-8")
                self.assertInventory(reserved=1, host=host)
                self.assertIn(reason, self.log())
        # What is known of the others is known of their group.
        cuda = "trait:CUSTOM_HW_GPU_CUDA_COMPUTE_CAPABILITY_V9_0"
        asked = self.flavor(gpus="= 7", **{"gpu:memory_mib": ">= 100000", cuda: "required"})
        server = self.boot(asked, host="host0")
        self.assertGPUs(server, [card.address for card in others], "host0")

    def test_without_nvml(self) -> None:
        """A library that does not answer, and none: what the driver shows is all that is known."""
        self.library.say(init="!9")
        self.start_host(machine="h200-8")
        self.assertInventory()
        self.flags(nvml=False, group="gpu")
        self.restart_host("host1")
        information = self.hosts["host1"].roots.proc / "driver/nvidia/gpus/0000:3b:00.0/information"
        information.write_text(information.read_text().replace("Excluded:\t No", "Excluded:\t Yes"))
        self.period()
        self.assertInventory(reserved=1)
        self.assertIn("NVIDIA's driver excludes it", self.log())
