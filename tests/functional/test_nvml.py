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

    def test_one_that_it_knows(self) -> None:
        self.facts = nvml.NvmlFacts(compute_capability=(7, 0))
        self.start_host(machine="h200-8")
        self.assertIn("HW_GPU_CUDA_COMPUTE_CAPABILITY_V7_0", self.traits())


class DeadCardTest(alone.Alone, base.GPUServersTestBase):
    """One card of eight that NVIDIA's driver has and cannot use, by the real probe; its node is
    there, as are its files in /proc."""

    leaves = dict.fromkeys(("hold", "reserved"), "it stays dead")

    def setUp(self) -> None:
        super().setUp()
        self.cards = machines.h200()
        self.library = self.useFixture(machines.Library(*self.cards))
        self.flags(nvml=True, group="gpu")

    def assertOneIsDead(self, index: int, reason: str) -> None:
        self.start_host(machine="h200-8")
        self.assertInventory(reserved=1)
        address = self.cards[index].address
        self.assertIn(f"GPU {address} (H200", self.log())
        self.assertIn(reason, self.log())
        # What is known of the others is known of their group.
        cuda = "trait:CUSTOM_HW_GPU_CUDA_COMPUTE_CAPABILITY_V9_0"
        asked = {"gpu:memory_mib": ">= 100000", cuda: "required"}
        server = self.boot(self.flavor(gpus="= 7", **asked))
        self.assertGPUs(server, [card.address for card in self.cards if card.address != address])
        self.boot(self.gpu_flavor(1), expected_state="ERROR")

    def test_one_that_its_driver_could_not_initialise(self) -> None:
        """RmInitAdapter failed: NVML does not list it."""
        self.library.say(*self.cards[1:])
        self.assertOneIsDead(0, "NVML cannot open it (Not Found)")

    def test_one_that_is_lost(self) -> None:
        self.library.say(
            *self.cards[:7], dataclasses.replace(self.cards[7], more={"pci": machines.LOST})
        )
        self.assertOneIsDead(7, "NVIDIA's driver has lost it")

    def test_one_that_no_program_may_use(self) -> None:
        """nvidia-smi -c 2"""
        more = {"compute_mode": "2"}
        self.library.say(dataclasses.replace(self.cards[0], more=more), *self.cards[1:])
        self.assertOneIsDead(0, "its compute mode is PROHIBITED")

    def test_one_whose_memory_is_not_told(self) -> None:
        more = {"memory": machines.NOT_SUPPORTED}
        self.library.say(dataclasses.replace(self.cards[0], more=more), *self.cards[1:])
        self.assertOneIsDead(0, "its memory is not known")

    def test_one_that_its_driver_excludes(self) -> None:
        self.flags(nvml=False, group="gpu")
        self.start_host(machine="h200-8")
        information = self.hosts["host1"].roots.proc / "driver/nvidia/gpus/0000:3b:00.0/information"
        information.write_text(information.read_text().replace("Excluded:\t No", "Excluded:\t Yes"))
        self.period()
        self.assertInventory(reserved=1)
        self.assertIn("NVIDIA's driver excludes it", self.log())

    def test_a_library_that_does_not_answer(self) -> None:
        """The nodes are there: they are all that is known."""
        self.library.say(init="!9")
        self.start_host(machine="h200-8")
        self.assertInventory()
