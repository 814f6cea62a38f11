# SPDX-License-Identifier: Apache-2.0
"""What NVML adds to a host's groups, as far as Placement takes it."""

from __future__ import annotations

import dataclasses

from tests.fixtures import nvml as machines
from tests.functional import alone, base


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
