# SPDX-License-Identifier: Apache-2.0
"""A card that one host drives until a guest needs it, and what is done to its instance there."""

from __future__ import annotations

import pathlib

from nova.virt.libvirt import utils as libvirt_utils

from tests.functional import kvm
from tests.functional.test_kvm_binding_moves import CARD, OTHER, MovesTestBase


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
        self.api.post_server_action(self.server["id"], {"shelveOffload": {}})
        self._wait_for_state_change(self.server, "SHELVED_OFFLOADED")
        self.assertWithGuests(host="host1")

    def test_rescue(self) -> None:
        folder = libvirt_utils.get_instance_path(self.instance(self.server))
        pathlib.Path(folder).mkdir()
        bound = self.times_bound("host1")
        self.api.post_server_action(self.server["id"], {"rescue": {"rescue_image_ref": kvm.IMAGE}})
        self._wait_for_state_change(self.server, "RESCUE")
        self.periods()
        self.assertWithGuests(CARD, host="host1")
        self.api.post_server_action(self.server["id"], {"unrescue": None})
        self._wait_for_state_change(self.server, "ACTIVE")
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
