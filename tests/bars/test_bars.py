# SPDX-License-Identifier: Apache-2.0
"""Cards with large BARs in guests with BIOS and with UEFI: each BAR has its place there.

They are pci-testdev, with a BAR of 8, 64 and 256 GiB each. The processor that is emulated has 40
address bits, of which SeaBIOS uses all, and OVMF an eighth.
"""

from __future__ import annotations

from typing import Any

from lab.vm import cards, modules
from tests.cloud import base as clouds
from tests.vfio import base, images

_ALL = (*cards.LARGE, cards.LARGEST)
# OVMF needs more than SeaBIOS does.
_GUEST_MIB = 256


class BarsTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.cloud._run_periodics)
        module = modules.INTERCEPT.stem
        self.addCleanup(self.host.unload, module)
        self.host.load(module)

    def test_by_bios(self) -> None:
        self.become_tree(_ALL)
        self.assertEqual([8, 64, 256], self.large_bars(self.started(3)))

    def test_by_uefi(self) -> None:
        self.become_tree(cards.LARGE)
        self.assertEqual([8, 64], self.large_bars(self.started(2, images.UEFI)))

    def test_more_than_uefi_has(self) -> None:
        """An eighth of 1 TiB is too small for the largest, for which BIOS has a place. That the
        refusal is right is seen where the operator's own figure lets the guest start: its BAR has
        none."""
        self.become_tree([cards.LARGEST])
        refused = self.cloud.boot(self.flavor(1), "ERROR", image=images.UEFI)
        self.assertIn("UEFI has no room in 40 address bits", self.cloud.fault(refused))
        self.assertIsNone(self.host.driver(cards.LARGEST))
        self.assertEqual([256], self.large_bars(self.started(1)))
        self.cloud._delete_everything()
        self.addCleanup(self.cloud.restart_compute)
        self.addCleanup(self.cloud.flags, guest_mmio_gib=None, group="gpu")
        self.cloud.flags(guest_mmio_gib=512, group="gpu")
        self.cloud.restart_compute()
        self.assertEqual([], self.large_bars(self.started(1, images.UEFI)))

    def flavor(self, count: int) -> Any:
        size = {**self.cloud.FLAVOR, "memory_mb": _GUEST_MIB}
        specs = {"gpus": f"= {count}", "gpu_arch": "s== hopper"}
        return self.cloud._create_flavor(**size, extra_spec=specs)

    def started(self, count: int, image: str = clouds.IMAGE) -> dict[str, Any]:
        server: dict[str, Any] = self.cloud.boot(self.flavor(count), image=image)
        self.assertEqual(count, len(self.hostdevs(server)))
        self.seen_in(server)
        return server
