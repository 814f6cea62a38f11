# SPDX-License-Identifier: Apache-2.0
"""Which cards a KVM guest gets, how it gets them, and who gets none."""

from __future__ import annotations

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.fixtures import libvirt
from tests.functional import kvm


class ClaimsTest(kvm.KVMServersTestBase):
    HOSTS = ("host1",)

    def test_two_cards_on_two_ports(self) -> None:
        server = self.boot(self.flavor(gpus="= 2", gpu_arch="s== ampere", hypervisor="s== KVM"))
        self.assertGPUs(server, kvm.FIRST_SOCKET)
        domain = self.domain(server)
        self.assertEqual([], domain.xpath("devices/controller[@type='pci']"))
        places = [dict(address.attrib) for address in domain.xpath("devices/hostdev/address")]
        for bus, first, second in (("0x01", *places[:2]), ("0x02", *places[2:])):
            place = {"type": "pci", "domain": "0x0000", "bus": bus, "slot": "0x00"}
            self.assertEqual({**place, "function": "0x0", "multifunction": "on"}, first)
            self.assertEqual({**place, "function": "0x1"}, second)
        self.assertEqual([], domain.xpath("devices/hostdev/rom"))
        self.assertInventory(total=4, used=2)
        hidden = self.boot(self.flavor(**{"gpus": "= 1", "gpu:option_rom": "false"}))
        self.assertEqual(["off"] * 2, self.domain(hidden).xpath("devices/hostdev/rom/@bar"))


class LibvirtRefusesTest(kvm.KVMServersTestBase):
    def test_another_host_is_tried_and_the_card_named(self) -> None:
        """What only libvirt knows is said by the card's address, and goes to the next host."""
        for name in ("host1", "host2"):
            self.start_host(name)
        message = "PCI device 0000:3b:00.1 is in use by driver QEMU, domain somebodys"
        connection = self.connection()
        define = connection.defineXML

        def refusing(xml: str) -> fakelibvirt.Domain:
            domain = define(xml)

            def create(flags: int = 0) -> None:
                raise libvirt.error(message, fakelibvirt.VIR_ERR_OPERATION_INVALID)

            domain.create = domain.createWithFlags = create
            return domain

        connection.defineXML = refusing
        servers = [self.boot(self.gpu_flavor(1)) for _ in range(4)]
        self.assertEqual(
            sorted(kvm.ALL), sorted(self.rendered(server, "host2")[0] for server in servers)
        )
        # Nova 29 tries host1 so often that the card is kept back for ten minutes.
        self.leaves = {"reserved": "nova-compute's log says why, and no command"}
        self.assertEqual(0, self.inventory("host1")["used"])
        fault = self.boot_refused(self.gpu_flavor(1), host="host1")
        self.assertIn("Exceeded maximum number of retries", fault)
        self.assertIn(
            "GPU 0000:3b:00.0 cannot be given: another domain has it: somebodys", self.log()
        )
