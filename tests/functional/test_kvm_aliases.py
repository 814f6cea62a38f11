# SPDX-License-Identifier: Apache-2.0
"""Cards that Nova's own PCI passthrough has, on a host in use that moves from it to this driver."""

from __future__ import annotations

from typing import Any

from nova_gpu.core import model
from tests.functional import aliases, base, kvm

CARD = kvm.ALL[0]


class AliasesTest(aliases.AliasesTestBase):
    def test_moving_a_host_in_use_from_aliases(self) -> None:
        """As the documentation has it, step by step."""
        self.device_spec(aliases.ALL_A2)
        self.start_host("host1", pci_info=aliases.devices())
        first, second = self.boot_by_alias(), self.boot_by_alias()
        had = {server["id"]: self.by_alias(server) for server in (first, second)}
        self.assertEqual({}, self.groups())

        # The specification goes: what is free is offered, what an instance has is not.
        self.device_spec()
        self.restart_host("host1")
        self.period()
        self.assertInventory(total=4, reserved=2)
        self.boot_refused(self.gpu_flavor(3))
        new = self.boot(self.gpu_flavor(2))
        self.assertEqual(2, len(self.rendered(new)))
        for server in (first, second):
            self.assertEqual(had[server["id"]], self.by_alias(server))

        # They keep theirs through whatever starts them anew, and nobody is offered them meanwhile.
        counts: list[int] = []
        driver = self.computes["host1"].driver
        render = driver._get_guest_xml

        def spy(*args: Any, **kwargs: Any) -> Any:
            (uuid,) = self.groups().values()
            cards = [model.PciAddress.parse(address) for address in kvm.ALL]
            counts.append(len(driver._gpus._card_inventory.usable(uuid, cards, set())))
            return render(*args, **kwargs)

        driver._get_guest_xml = spy
        self._stop_server(first)
        self._start_server(first)
        self._reboot_server(second, hard=True)
        self._rebuild_server(first, base.IMAGE)
        self.assertEqual([0, 0, 0], counts)
        self.period()
        self.assertInventory(total=4, reserved=2, used=2)
        for server in (first, second):
            self.assertEqual(had[server["id"]], self.by_alias(server))

        # One is resized to a flavor with GPUs, the other is deleted: their cards are offered.
        self.start_host("host2")
        self._resize_server(first, self.gpu_flavor(1))
        self.confirm(first, source="host1")
        self.assertGPUs(first, [CARD], "host2")
        self.assertEqual([], self.by_alias(first, "host2"))
        self._reboot_server(first, hard=True)  # for which Nova looks for functions of it
        self.assertGPUs(first, [CARD], "host2")
        self._delete_server(second)
        self.period()
        self.assertInventory(total=4, reserved=0, used=2)
        self.assertEqual(2, len(self.rendered(self.boot(self.gpu_flavor(2), host="host1"))))


class ResizedAliasesTest(aliases.AliasesTestBase):
    """An instance with a card by an alias is resized on the same host to one of nova-gpu's."""

    # Called instead of cast, the destination would take the source's error for its own.
    CAST_AS_CALL = False

    def test_its_card_is_given_to_no_other_before_it_is_confirmed(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.device_spec(aliases.spec_of("3b"), aliases.spec_of("5e"))
        self.start_host(pci_info=aliases.devices())
        booted = self.boot_by_alias(), self.boot_by_alias()
        servers = {self.by_alias(server)[0]: server for server in booted}
        owner, server = servers["0x5e"], servers["0x3b"]
        self._resize_server(server, self.gpu_flavor(1))
        self.period()
        self.assertInventory(total=2, used=1)
        self.boot_refused(self.gpu_flavor(2))
        self._revert_resize(server)
        self.assertEqual(["0x3b"], self.by_alias(server))
        self.period()
        self.assertInventory(total=2)

        # Without the specification the card would be offered while no domain has it.
        self.device_spec(aliases.spec_of("5e"))
        self.restart_host("host1")
        self.period()
        self.assertInventory(total=3, reserved=1)
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": self.gpu_flavor(1)}})
        self._wait_for_assert(lambda: self.assertIn("resize it to another host, or", self.log()))
        self._wait_until_settled(server)
        self._wait_for_assert(lambda: self.assertEqual({}, self.allocated(server)))
        self.period()
        self.assertInventory(total=3, reserved=1)
        self.assertEqual(["0x3b"], self.by_alias(server))
        self._resize_server(owner, self.gpu_flavor(1))
        self.confirm(owner, source="host1")
        self.assertEqual([], self.by_alias(owner))
        self.start_host("host2")
        self.flags(allow_resize_to_same_host=False)
        self._resize_server(server, self.gpu_flavor(1))
        self.confirm(server, source="host1")
        self.assertEqual(1, len(self.rendered(server, "host2")))
