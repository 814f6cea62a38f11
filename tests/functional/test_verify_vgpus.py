# SPDX-License-Identifier: Apache-2.0
"""The same of vGPUs."""

from __future__ import annotations

from unittest import mock

from nova_gpu.virt.truths import Kind
from tests.functional import profiled, test_verify
from tests.functional.profiled import FIRST, slots


class VGPUsTest(test_verify.Verifying, profiled.ProfiledServersTestBase):
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
            before = self._get_allocations_by_server_uuid(each["id"])
            self.placement.delete(f"/allocations/{each['id']}")
            self.judge(mend=True)
            self.assertFound()
            after = self._get_allocations_by_server_uuid(each["id"])
            self.assertEqual(
                {uuid: found["resources"] for uuid, found in before.items()},
                {uuid: found["resources"] for uuid, found in after.items()},
            )
        with mock.patch.object(self.driver._gpus.vgpus, "release"):
            self._delete_server(server)
        self.assertFound((Kind.VGPU_LEFT, slot))
        self.period()
        self.assertFound()
