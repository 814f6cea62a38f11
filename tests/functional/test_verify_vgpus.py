# SPDX-License-Identifier: Apache-2.0
"""The same of vGPUs."""

from __future__ import annotations

from unittest import mock

from nova_gpu.virt.verify.sources import Kind
from tests.functional import alone, divided, profiled, test_verify
from tests.functional.profiled import FIRST, slots


class VGPUsTest(alone.Alone, test_verify.Verifying, profiled.ProfiledServersTestBase):
    def test_what_is_missing_miscounted_and_left(self) -> None:
        kernel = self.kernels["host1"]
        server, (slot,) = self.boot(self.of_type(1155)), slots(1155, FIRST[0])
        whole = self.boot(self.flavor(gpus="= 1", vgpus="= 1", vgpu_type="nvidia-1155"))
        self.assertFound()
        kernel.forget_all()
        self.assertFound((Kind.VGPU_MISSING, slot), (Kind.VGPU_MISSING, self.recorded(whole)[0]))
        for each in (server, whole):
            self._reboot_server(each, hard=True)
        self.assertVGPUs(server, [slot])
        self.assertFound()
        for each in (server, whole):
            before = self.allocations(each)
            self.placement.delete(f"/allocations/{each['id']}")
            self.judge(mend=True)
            self.assertFound()
            self.assertEqual(before, self.allocations(each))
        with mock.patch.object(self.driver._gpus.vgpus, "release"):
            self._delete_server(server)
        self.assertFound((Kind.VGPU_LEFT, slot))
        self.period()
        self.assertFound()

    def test_an_inventory_that_says_too_much_or_too_little(self) -> None:
        """Also of a type that nobody has, on a card that is partly another's."""
        self.boot(self.of_type(1155))
        self.assertFound()
        for number in (1155, 1147):
            name = f"host1_gpu_{self.PRODUCT}_vgpu_nvidia-{number}"
            provider = self._get_provider_uuid_by_name(name)
            url = f"/resource_providers/{provider}/inventories/VGPU"
            right = self.inventories()[number]
            for total, kind in (
                (right[0] + 1, Kind.INVENTORY_EXCEEDS),
                (1, Kind.INVENTORY_SHORT),
            ):
                now = self.placement.get(url).body
                self.placement.put(url, {**now, "total": total, "reserved": 0, "max_unit": total})
                self.assertFound((kind, name))
                # Nova looks only every five minutes at what somebody else has written there.
                self.driver.virtapi.reportclient.clear_provider_cache()
                self.period()
                self.assertFound()
                self.assertEqual(right, self.inventories()[number])


class MediatedTest(alone.Alone, test_verify.Verifying, divided.DividedServersTestBase):
    def test_two_types_that_come_and_go(self) -> None:
        self.assertFound()
        servers = [self.boot(self.of_type(number)) for number in (63, 64, 63)]
        self.assertFound()
        for server in servers:
            self._stop_server(server)
            self.assertFound()
            self._delete_server(server)
            self.assertFound()
        self.period()
        self.assertFound()
