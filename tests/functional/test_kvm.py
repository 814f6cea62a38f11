# SPDX-License-Identifier: Apache-2.0
"""Which cards a KVM guest gets, how it gets them, and who gets none."""

from __future__ import annotations

import json

from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client

from tests.fixtures import flavor_reads, libvirt
from tests.functional import alone, kvm


class ClaimsTest(kvm.KVMServersTestBase):
    HOSTS = ("host1",)

    def test_two_cards_on_two_ports(self) -> None:
        server = self.boot(self.flavor(gpus="= 2", gpu_arch="s== ampere", hypervisor="s== KVM"))
        self.assertGPUs(server, kvm.FIRST_SOCKET)
        domain = self.domain(server)
        self.assertEqual([], domain.xpath("devices/controller[@type='pci']"))
        places = [dict(each.attrib) for each in domain.xpath("devices/hostdev/address")]
        for bus, first, second in (("0x01", *places[:2]), ("0x02", *places[2:])):
            place = {"type": "pci", "domain": "0x0000", "bus": bus, "slot": "0x00"}
            self.assertEqual({**place, "function": "0x0", "multifunction": "on"}, first)
            self.assertEqual({**place, "function": "0x1"}, second)
        self.assertInventory(total=4, used=2)

    def test_option_rom(self) -> None:
        shown = self.boot(self.gpu_flavor(1))
        self.assertEqual([], self.domain(shown).xpath("devices/hostdev/rom"))
        flavor = self.flavor(**{"gpus": "= 1", "gpu:option_rom": "false"})
        reads = self.useFixture(flavor_reads.FlavorReads())
        hidden = self.boot(flavor)
        roms = self.domain(hidden).xpath("devices/hostdev/rom/@bar")
        self.assertEqual(["off", "off"], roms)
        # The scheduler has the flavor as it is written, and spelled out for Placement.
        self.assertEqual({"parse_count": 2}, reads.scheduled)
        self.assertEqual({"parse_count": 1, "parse_switch": 1}, reads.spawned)

    def test_machine_type_without_pci_express(self) -> None:
        self.flags(hw_machine_type=[], group="libvirt")
        fault = self.boot_refused(self.gpu_flavor(1))
        for part in ("machine type is pc", "hw_machine_type=q35"):
            self.assertIn(part, fault)
        self.assertInventory(total=4, used=0)
        self.assertGPUs(self.boot(self.flavor()), [])

    def test_image_without_pci_express(self) -> None:
        """Refused before a host is chosen."""
        fault = self.boot_refused(self.gpu_flavor(1), image_uuid=self.image(hw_machine_type="pc"))
        for part in ("machine type is pc", "hw_machine_type=q35"):
            self.assertIn(part, fault)
        server = self.boot(self.gpu_flavor(1), image_uuid=self.image(hw_machine_type="q35"))
        self.assertGPUs(server, kvm.FIRST_SOCKET[:1])

    def test_rebuild_with_an_image_without_pci_express(self) -> None:
        """Nova shows the instance in ERROR; its guest is as it was, and has what it had."""
        server = self.boot(self.gpu_flavor(1))
        # A cast is a call here, so that what the scheduler raises reaches the API.
        image = self.image(hw_machine_type="pc")
        self.assertRaises(client.OpenStackApiException, self._rebuild_server, server, image)
        self._wait_for_state_change(server, "ERROR")
        self.assertEqual(list(kvm.FIRST_SOCKET[:1]), self.rendered(server))
        self.assertEqual({"host1": 1}, self.allocated(server))
        self._rebuild_server(server, self.image(hw_machine_type="q35"))
        self.assertGPUs(server, kvm.FIRST_SOCKET[:1])


class OneHostTest(alone.Alone, kvm.KVMServersTestBase):
    HOSTS = ("host1",)

    def test_the_pool_and_back(self) -> None:
        one = self.boot(self.gpu_flavor(1))
        two = self.boot(self.gpu_flavor(2))
        self.assertGPUs(one, kvm.FIRST_SOCKET[:1])
        self.assertGPUs(two, kvm.SECOND_SOCKET)
        self.assertIn("at most 1 free", self.boot_refused(self.gpu_flavor(2)))
        self._delete_server(two)
        self.assertGPUs(self.boot(self.gpu_flavor(3)), [kvm.ALL[1], *kvm.SECOND_SOCKET])
        self.assertInventory(total=4, used=4)

    def test_novas_video_device_stays_the_first(self) -> None:
        domain = self.domain(self.boot(self.gpu_flavor(1)))
        self.assertEqual(1, len(domain.findall("devices/video")))
        self.assertEqual([], domain.xpath("devices/hostdev//*[@primary or @display]"))
        self.assertIsNone(domain.find("{http://libvirt.org/schemas/domain/qemu/1.0}commandline"))

    def test_ports_for_other_devices_and_hiding_are_novas(self) -> None:
        self.flags(num_pcie_ports=3, group="libvirt")
        server = self.boot(self.flavor(**{"gpus": "= 2", "hw:hide_hypervisor_id": "true"}))
        self.assertGPUs(server, kvm.FIRST_SOCKET)
        domain = self.domain(server)
        ports = domain.xpath("devices/controller[@model='pcie-root-port']")
        self.assertEqual(["1", "2", None, None, None], [port.get("index") for port in ports])
        self.assertEqual(["on"], domain.xpath("features/kvm/hidden/@state"))


class ObstaclesTest(alone.Alone, kvm.KVMServersTestBase):
    def test_what_cannot_be_given_is_not_offered(self) -> None:
        self.start_host()
        group = (self.hosts["host1"].path(kvm.ALL[0]) / "iommu_group").resolve().name
        self.hosts["host1"].add_device(
            "0000:3c:00.0", "8086", "10d3", class_code=0x020000, iommu_group=int(group)
        )
        self.period()
        self.assertInventory(total=4, reserved=1)
        self.restart_host("host1")
        self.assertInventory(total=3)
        self.assertGPUs(self.boot(self.gpu_flavor(3)), kvm.ALL[1:])

    def test_more_memory_than_a_guest_can_map(self) -> None:
        """Each of them is offered; together they are too much, which Placement knows."""
        self.flags(guest_mmio_gib=1, group="gpu")
        self.start_host()
        self.boot(self.gpu_flavor(1))
        fault = self.boot_refused(self.gpu_flavor(3))
        self.assertIn("no guest of any host has room for 3 GPUs: the most in one guest is 2", fault)
        self.assertInventory(total=4, used=1)


class LibvirtRefusesTest(kvm.KVMServersTestBase):
    def test_another_host_is_tried_and_the_card_named(self) -> None:
        """What only libvirt knows is said by the card's address, and goes to the next host."""
        for name in ("host1", "host2"):
            self.start_host(name)
        said = "PCI device 0000:3b:00.1 is in use by driver QEMU, domain somebodys"
        connection = self.connection()
        define = connection.defineXML

        def refusing(xml: str) -> fakelibvirt.Domain:
            domain = define(xml)

            def create(flags: int = 0) -> None:
                raise libvirt.error(said, fakelibvirt.VIR_ERR_OPERATION_INVALID)

            domain.create = domain.createWithFlags = create
            return domain

        connection.defineXML = refusing
        servers = [self.boot(self.gpu_flavor(1)) for _ in range(4)]
        self.assertEqual(
            sorted(kvm.ALL), sorted(self.rendered(each, "host2")[0] for each in servers)
        )
        self.assertInventory(total=4, used=0, host="host1")
        fault = self.boot_refused(self.gpu_flavor(1), host="host1")
        self.assertIn("Exceeded maximum number of retries", fault)
        self.assertIn(
            "GPU 0000:3b:00.0 cannot be given: another domain has it: somebodys", self.log()
        )


class HypervisorWordTest(kvm.KVMServersTestBase):
    HOSTS = ("host1",)

    def test_the_flavors_word_chooses(self) -> None:
        for word in ("KVM", "s== QEMU", "s!= LXC", "<or> KVM <or> LXC"):
            with self.subTest(word=word):
                server = self.boot(self.flavor(gpus="= 1", hypervisor=word))
                self.assertEqual(1, len(self.rendered(server)))
        fault = self.boot_refused(self.flavor(gpus="= 1", hypervisor="s== LXC"))
        self.assertIn("no host has GPUs with hypervisor lxc; there are: qemu", fault)
        fault = self.boot_refused(self.flavor(gpus="= 1", hypervisor="s!= KVM"))
        self.assertIn("hypervisor s!= kvm (qemu); there are: qemu", fault)


class BesideAliasesTest(kvm.KVMServersTestBase):
    ADDITIONAL_FILTERS = ("GPUFilter", "PciPassthroughFilter")

    def test_another_device_by_alias_in_the_same_guest(self) -> None:
        nic = {"vendor_id": fakelibvirt.PCI_VEND_ID, "product_id": fakelibvirt.PCI_PROD_ID}
        self.flags(device_spec=[json.dumps(nic)], group="pci")
        self.flags(alias=[json.dumps({**nic, "name": "nic"})], group="pci")
        self.start_host(pci_info=fakelibvirt.HostPCIDevicesInfo(num_pci=2, num_pfs=0, num_vfs=0))
        flavor = self.flavor(**{"gpus": "= 1", "pci_passthrough:alias": "nic:1"})
        servers = [self.boot(flavor), self.boot(flavor)]
        for server, card in zip(servers, kvm.FIRST_SOCKET, strict=True):
            self.assertGPUs(server, [card])
            self.assertEqual(["0x81"], self.by_alias(server))
        self.period()
        self.assertInventory(total=4, used=2)
        self.assertNotIn("Instances do not get GPU", self.log())
