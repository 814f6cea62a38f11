# SPDX-License-Identifier: Apache-2.0
"""Cards that direct links join, of which guests of KVM have whole ones."""

from __future__ import annotations

from tests.functional import alone, kvm, profiled

FIRST, SECOND = kvm.FIRST_SOCKET, kvm.SECOND_SOCKET
ALL = " ".join(kvm.ALL)


class LinkedTest(alone.Alone, kvm.KVMServersTestBase):
    def start(self, *groups: str, **options: bool) -> None:
        self.flags(link_groups=list(groups), group="gpu", **options)
        self.start_host()

    def test_one_guest_for_a_group(self) -> None:
        self.start(ALL)
        self.assertInventory(total=4)
        one = self.boot(self.gpu_flavor(1))
        self.assertInventory(total=4, used=1, reserved=3)
        self.boot(self.gpu_flavor(1), expected_state="ERROR")
        self.restart_host("host1")
        self.assertInventory(total=4, used=1, reserved=3)
        self.boot(self.gpu_flavor(1), expected_state="ERROR")
        self._delete_server(one)
        self.period()
        two = self.boot(self.gpu_flavor(3))
        self.assertEqual(3, len(self.recorded(two)))
        self.boot(self.gpu_flavor(1), expected_state="ERROR")

    def test_several_groups(self) -> None:
        self.start(" ".join(FIRST), " ".join(SECOND))
        one, two = (self.boot(self.gpu_flavor(1)) for _ in range(2))
        self.assertGPUs(one, FIRST[:1])
        self.assertGPUs(two, SECOND[:1])
        self.assertInventory(total=4, used=2, reserved=2)
        self.boot(self.gpu_flavor(1), expected_state="ERROR")

    def test_a_claim_that_placement_let_through(self) -> None:
        """Placement is told of a claim when the next one is made."""
        self.start(ALL)
        self.boot(self.gpu_flavor(1))
        tracker = self.computes["host1"].manager.rt
        (uuid,) = self.groups().values()
        (node,) = tracker.compute_nodes
        there = tracker.provider_tree.data(uuid).resources["PGPU"]
        self.assertEqual(0, len(there - tracker.assigned_resources[uuid]["PGPU"]), node)

    def test_by_option(self) -> None:
        self.start(ALL, split_link_groups=True)
        for card in kvm.ALL:
            self.assertGPUs(self.boot(self.gpu_flavor(1)), [card])
        self.assertIn("can reach each other's memory over", self.log())


class LinkedToPartsTest(alone.Alone, profiled.ProfiledServersTestBase):
    def test_none_is_whole_beside_one_in_parts(self) -> None:
        self.flags(link_groups=[f"0000:af:00.0 {profiled.WHOLE}"], group="gpu")
        self.start_host()
        self.assertEqual({}, self.groups())
        self.assertIn("direct links join it with 0000:af:00.0", self.log())
