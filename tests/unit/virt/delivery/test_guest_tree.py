# SPDX-License-Identifier: Apache-2.0
"""The tree and the NUMA cells of a guest's domain. libvirt 9.0 took these for q35, and SeaBIOS
1.16.2, OVMF 2022.11 and Linux 6.1 under QEMU 7.2 showed the tree, with BARs of 16 GiB and 1 GiB in
the cards' places."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import ddt
import fixtures
from lxml import etree
from nova import objects
from nova.virt.libvirt import config as vconfig
from oslo_utils.fixture import uuidsentinel
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.guest import tree
from nova_gpu.core.model import GPU
from nova_gpu.host.pci import discovery
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import domain_xml, guest_tree
from nova_gpu.virt.delivery.delivery import described
from nova_gpu.virt.usage import records
from tests.fixtures import cards, hosts, pci
from tests.fixtures.guest_trees import ALONE, ELSEWHERE, PAIR

Q35 = "pc-q35-7.2"


class GuestTreeTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = Roots(sysfs=pathlib.Path(self.useFixture(fixtures.TempDir()).path))

    def instance(self, word: str | None = None, cells: Sequence[int] = ()) -> objects.Instance:
        specs = {} if word is None else {"gpu:guest_topology": word}
        flavor = objects.Flavor(extra_specs=specs, memory_mb=1024)
        topology = None
        if cells:
            own = [objects.InstanceNUMACell(id=node) for node in cells]
            topology = objects.InstanceNUMATopology(cells=own)
        return objects.Instance(
            uuid=uuidsentinel.instance, flavor=flavor, numa_topology=topology, system_metadata={}
        )

    def seen(
        self, instance: objects.Instance, held: Sequence[GPU], machine_type: str = Q35
    ) -> tree.Tree | None:
        """The tree that the instance's guest sees"""
        flavor_request = records.request_of(instance)
        return guest_tree.of(instance, flavor_request, held, machine_type, self.roots)

    def write_cpus(self, **cpulists: str) -> None:
        for node, cpulist in cpulists.items():
            folder = self.roots.sysfs / "devices/system/node" / node
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(f"{cpulist}\n")


@ddt.ddt
class OfTest(GuestTreeTestCase):
    @ddt.data(
        (None, PAIR, True),
        ("auto", [ALONE, ELSEWHERE], True),
        ("auto", [PAIR[0], ALONE], False),
        ("auto", [ALONE], False),
        ("required", [ALONE], True),
        ("flat", [*PAIR, ELSEWHERE], False),
    )
    @ddt.unpack
    def test_words(self, word: str | None, held: list[GPU], expected: bool) -> None:
        planned_tree = self.seen(self.instance(word), held)
        self.assertEqual(tree.of(held) if expected else None, planned_tree)

    def refused(self, *arguments: Any) -> str:
        with self.assertRaises(exception.GuestUnfit) as raised:
            self.seen(*arguments)
        return str(raised.exception)

    def test_other_machine_types(self) -> None:
        self.assertIsNone(self.seen(self.instance(), PAIR, "virt-8.0"))
        message = self.refused(self.instance("required"), PAIR, "virt-8.0")
        self.assertIn("machine type virt-8.0 cannot have it", message)

    def test_too_many_roots(self) -> None:
        many = [
            cards.placed(f"0000:{bus:02x}:00.0", bus % 2, pci_root=f"pci0000:{bus:02x}")
            for bus in range(1, 20)
        ]
        self.assertIsNone(self.seen(self.instance(), many))
        self.assertIn("too few bus numbers", self.refused(self.instance("required"), many, Q35))

    def test_one_node_of_several_cells(self) -> None:
        self.with_io_bars(0)
        self.host.add_gpu(str(ALONE.address), "10de", "2204")
        self.image()
        unknown = dataclasses.replace(ALONE, numa_node=None)
        for cells, card, expected in (
            *(((), ALONE, None), ((0,), ALONE, None), ((0, 1), ALONE, tree.of([ALONE]))),
            ((0, 1), unknown, None),
        ):
            self.assertEqual(expected, self.seen(self.instance(cells=cells), [card]))

    def test_cells_of_the_flavors_on_other_nodes(self) -> None:
        held = [ALONE, ELSEWHERE]
        self.assertIsNotNone(self.seen(self.instance(cells=[0]), held))
        self.assertIsNotNone(self.seen(self.instance("required", [0, 1]), held))
        message = self.refused(self.instance("required", [0]), held, Q35)
        self.assertIn("are not on node 1, where its GPUs are", message)

    def test_more_io_ports_than_uefi_has(self) -> None:
        """QEMU 7.2 with OVMF 2022.11: behind two expanders 9 such cards had addresses, and of 10
        none; SeaBIOS placed the memory of 13."""
        held = self.with_io_bars(10)
        self.image(hw_firmware_type="uefi")
        self.assertIsNotNone(self.seen(self.instance(), held[:9]))
        self.assertIsNone(self.seen(self.instance(), held))
        message = self.refused(self.instance("required"), held, Q35)
        self.assertIn("9 GPUs that have a BAR with I/O ports, and 10 of its GPUs have one", message)
        self.assertIn("an image without hw_firmware_type=uefi", message)
        # Of one to which the host gave no ports a guest sees none.
        pci.write_io_bar(self.host.path(str(held[0].address)), 0)
        self.assertIsNotNone(self.seen(self.instance(), held))
        pci.write_io_bar(self.host.path(str(held[0].address)), 0x1000)
        self.image()
        self.assertIsNotNone(self.seen(self.instance(), held))

    def with_io_bars(self, count: int) -> list[GPU]:
        self.host = hosts.Host(self.roots.sysfs.parent / "host")
        self.roots = self.host.roots
        held = []
        for number in range(1, count + 1):
            address, node = f"0000:{number:02x}:00.0", number % 2
            held.append(cards.placed(address, node, pci_root=f"pci0000:{node:02x}"))
            self.host.add_gpu(address, "10de", "2204")
            pci.write_io_bar(self.host.path(address), 0x1000 * number)
        return held

    def image(self, **properties: str) -> None:
        image_meta = objects.ImageMeta(properties=objects.ImageMetaProps(**properties))
        self.useFixture(fixtures.MonkeyPatch("nova.objects.Instance.image_meta", image_meta))


class RenderTest(GuestTreeTestCase):
    def guest(self, *, ports: int = 0, vcpus: int = 4) -> vconfig.LibvirtConfigGuest:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        guest.os_mach_type = Q35
        guest.memory, guest.vcpus = 1 << 20, vcpus
        guest.cpu = vconfig.LibvirtConfigGuestCPU()
        guest.add_device(vconfig.LibvirtConfigGuestDisk())
        guest.add_device(vconfig.LibvirtConfigGuestSerial())
        if ports:
            guest.add_device(vconfig.LibvirtConfigGuestPCIeRootController())
        for _ in range(ports):
            guest.add_device(vconfig.LibvirtConfigGuestPCIeRootPortController())
        return guest

    def domain(self, guest: Any, held: Sequence[GPU], *, cells: bool = True) -> Any:
        planned_tree = tree.of(held)
        assert planned_tree is not None
        if cells:
            guest_tree.add_cells(guest, planned_tree, self.roots)
        domain_xml.add_cards(guest, held, option_rom=True, tree=planned_tree)
        guest.devices = [
            device
            for device in guest.devices
            if not isinstance(device, vconfig.LibvirtConfigGuestDisk)
        ]
        return etree.fromstring(guest.to_xml())

    def test_tree(self) -> None:
        domain = self.domain(self.guest(), [*PAIR, ELSEWHERE])
        for index, model, *place in (
            ("1", "pcie-expander-bus", "249", "0"),
            ("2", "pcie-root-port", "0x01", "0x00"),
            ("3", "pcie-switch-upstream-port", "0x02", "0x00"),
            ("4", "pcie-switch-downstream-port", "0x03", "0x00"),
            ("5", "pcie-switch-downstream-port", "0x03", "0x01"),
            ("6", "pcie-expander-bus", "254", "1"),
            ("7", "pcie-root-port", "0x06", "0x00"),
        ):
            (one,) = domain.xpath(f"devices/controller[@index='{index}'][@model='{model}']")
            self.assertEqual(place, one.xpath("*/@busNr|target/node/text()|*/@bus|*/@slot"))
        self.assertEqual(7, len(domain.xpath("devices/controller[target or address]")))
        buses = domain.xpath("devices/hostdev/address/@bus")
        self.assertEqual(["0x04", "0x05", "0x07"], buses)

    def test_ports_for_other_devices(self) -> None:
        """For the disk, three that libvirt adds and one to be attached; none where Nova has some.
        They have numbers: libvirt makes the first one without the guest's root, else."""
        for ports, expected in ((0, ["3", "4", "5", "6", "7"]), (2, [None, None])):
            domain = self.domain(self.guest(ports=ports), [ALONE])
            controllers = domain.xpath("devices/controller[@model='pcie-root-port'][not(address)]")
            self.assertEqual(expected, [controller.get("index") for controller in controllers])

    def test_cells(self) -> None:
        self.write_cpus(node0="0-3,8", node1="4-7")
        guest = self.guest()
        guest.cpuset = {1, 2, 4}
        domain = self.domain(guest, [ALONE, ELSEWHERE])
        self.assertEqual(
            [
                {"id": "0", "cpus": "0-1", "memory": str(512 << 10)},
                {"id": "1", "cpus": "2-3", "memory": str(512 << 10)},
            ],
            [dict(cell.attrib) for cell in domain.findall("cpu/numa/cell")],
        )
        self.assertEqual(
            [("0", "preferred", "0"), ("1", "preferred", "1")],
            [tuple(memnode.attrib.values()) for memnode in domain.findall("numatune/memnode")],
        )
        self.assertEqual(
            [("0", "1-2"), ("1", "1-2"), ("2", "4"), ("3", "4")],
            [tuple(pin.attrib.values()) for pin in domain.findall("cputune/vcpupin")],
        )

    def test_nodes_without_processors(self) -> None:
        self.write_cpus(node0="0", node1="")
        guest = self.guest(vcpus=1)
        guest.cpu = None
        domain = self.domain(guest, [ALONE, ELSEWHERE])
        cells = [dict(cell.attrib).get("cpus") for cell in domain.findall("cpu/numa/cell")]
        self.assertEqual(["0", None], cells)
        self.assertEqual(["0"], domain.xpath("cputune/vcpupin/@vcpu"))

    def test_cells_of_the_flavors(self) -> None:
        """Nova's second cell is on the host's first node; no cell is on that of the other card."""
        guest = self.guest()
        guest.cpu.numa = vconfig.LibvirtConfigGuestCPUNUMA()
        guest.numatune = vconfig.LibvirtConfigGuestNUMATune()
        for cell, node in ((0, 2), (1, 0)):
            tune = vconfig.LibvirtConfigGuestNUMATuneMemNode()
            tune.cellid, tune.nodeset = cell, [node]
            guest.numatune.memnodes.append(tune)
        domain = self.domain(guest, [ALONE, ELSEWHERE])
        self.assertEqual([], domain.findall("cpu/numa/cell"))
        targets = domain.findall("devices/controller/target")
        self.assertEqual(["1", None], [target.findtext("node") for target in targets])


class SeenTest(GuestTreeTestCase):
    def test_links_of_cards_and_switches(self) -> None:
        """What a guest is told, which cannot see them"""
        host = hosts.build("switched-8", self.useFixture(fixtures.TempDir()).path)
        for bus, speed in (("04", "5.0"), ("02", "8.0"), ("01", "2.5")):
            folder = host.path(f"0000:{bus}:00.0")
            (folder / "max_link_speed").write_text(f"{speed} GT/s PCIe\n")
            (folder / "max_link_width").write_text("16\n")
        gpus = discovery.cards_at(cards.addresses("0000:04:00.0", "0000:05:00.0"), host.roots)
        planned = tree.of(gpus)
        assert planned is not None
        one, other = described(gpus, planned.places(), host.roots)
        self.assertEqual({"speed": "5.0 GT/s PCIe", "width": 16}, one["pcie"])
        self.assertIsNone(other["pcie"])
        for device in (one, other):
            assert device["switch"] is not None
            self.assertEqual({"speed": "2.5 GT/s PCIe", "width": 16}, device["switch"]["pcie"])
