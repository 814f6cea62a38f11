# SPDX-License-Identifier: Apache-2.0
"""A card that one host drives until a guest needs it, and what is done to its instance there."""

from __future__ import annotations

from tests.functional.kvm import CARD, OTHER
from tests.functional.test_kvm_binding_moves import MovesTestBase


class HereTest(MovesTestBase):
    """On one host; the other one's cards of the same addresses are nobody's."""

    def tearDown(self) -> None:
        self.assertEqual([], self.kernels["host2"].done)
        super().tearDown()

    def test_shelved_until_it_is_offloaded(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.periods()
        self.assertWithGuests(CARD, host="host1")
        self.perform(self.server, "shelveOffload", "SHELVED_OFFLOADED")
        self.assertWithGuests(host="host1")

    def test_rescue(self) -> None:
        bound = self.times_bound("host1")
        self.rescue(self.server)
        self.periods()
        self.assertWithGuests(CARD, host="host1")
        self.perform(self.server, "unrescue", "ACTIVE")
        self.assertWithGuests(CARD, host="host1")
        self.assertEqual(bound, self.times_bound("host1"))

    def test_failed_build(self) -> None:
        self.break_libvirt("host1")
        self.boot_refused(self.gpu_flavor(1), host="host1")
        self.assertWithGuests(CARD, host="host1")
        self.assertInventory(total=2, used=1, host="host1")
        self.period("host1")
        self.assertWithGuests(CARD, host="host1")

    def test_resize_to_the_same_host_and_back(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.api.put_service(self.computes["host2"].service_ref.uuid, {"status": "disabled"})
        self._resize_server(self.server, self.flavor(gpus="= 1", note="another"))
        self.periods()
        self.assertWithGuests(CARD, OTHER, host="host1")
        self._revert_resize(self.server)
        self.assertGPUs(self.server, [CARD])
        self.assertWithGuests(CARD, host="host1")
