# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from collections.abc import Mapping, Sequence
from typing import Any

import libvirt
from nova.virt.libvirt import config as vconfig

from nova_gpu.core import exception
from nova_gpu.core.device import Device
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, VGPUType
from nova_gpu.host import nodes as nodes_of_host
from nova_gpu.virt.delivery import domain_xml
from nova_gpu.virt.usage import domains
from tests.fixtures import cards, drm, nodes, nvidia, pci
from tests.fixtures.bases.host import HostTestCase

A, B, C = cards.addresses("0000:04:00.0", "0000:05:00.0", "10000:88:00.0")
(A_AUDIO,) = cards.addresses("0000:04:00.1")
PARTS = domains.Parts(
    {"/dev/nvidia0": A, "/dev/nvidia1": B, "/dev/dri/card1": B}, {A: A, A_AUDIO: A, B: B, C: C}
)


def domain(devices: str = "", metadata: str = "") -> str:
    return (
        "<domain type='lxc'><name>one</name>"
        f"<metadata>{metadata}</metadata><devices>{devices}</devices></domain>"
    )


def node(path: str) -> str:
    source = f"<source><char>{path}</char></source>"
    return f"<hostdev mode='capabilities' type='misc'>{source}</hostdev>"


def mount(path: str) -> str:
    return f"<filesystem type='mount'><source dir='{path}'/><target dir='{path}'/></filesystem>"


def hostdev(domain: str, bus: str, kind: str = "pci", function: int = 0) -> str:
    address = f"<address domain='{domain}' bus='{bus}' slot='0x00' function='0x{function}'/>"
    return f"<hostdev mode='subsystem' type='{kind}'><source>{address}</source></hostdev>"


class GPUsInTest(unittest.TestCase):
    def assertNames(self, expected: Sequence[object], xml: str) -> None:
        self.assertEqual(set(expected), domains.gpus_in(xml, PARTS), xml)

    def test_what_it_names(self) -> None:
        metadata = domain_xml.GuestMetaGPUs((A, C)).to_xml()
        # The format of earlier releases
        self.assertIn('xmlns:gpu="urn:nova-gpu:domain:1"', metadata)
        self.assertIn(f'<gpu:gpu address="{A}"/>', metadata)
        gone = Slot.parse("0000:5e:00.0/nvidia-63/1")
        edited = domain_xml.GuestMetaGPUs((C,)).to_xml().replace(str(C), "the second one")
        theirs = "<other:gpus xmlns:other='urn:other'><gpu address='x'/></other:gpus>"
        pci = hostdev("0x0000", "0x04") + hostdev("0x10000", "0x88")
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "one", "lxc", "exe"
        guest.metadata.append(domain_xml.GuestMetaGPUs((B,)))
        for expected, xml in (
            ([], domain()),
            ([], "<domain><name>one</name></domain>"),
            ([], domain(node("/dev/fuse") + mount("/srv") + node("/dev/nvidiactl"))),
            ([A, B], domain(node("/dev/nvidia0") + node("/dev/dri/card1"))),
            ([A, C], domain(pci)),
            ([A], domain(hostdev("0x0000", "0x04", function=1))),
            ([], domain(hostdev("0x0000", "0x04", "usb") + hostdev("0x0000", "0x3b"))),
            # Our metadata outlasts the nodes' numbers, and does not hide a PCI device.
            ([A, C], domain(node("/dev/nvidia1"), metadata)),
            ([A, C], domain(pci, domain_xml.GuestMetaGPUs((A,)).to_xml())),
            # The device cgroup allows what libvirt has made. Of a stranger it counts all the same.
            (
                [A, C],
                domain(mount("/dev/nvidia1"), metadata).replace("<domain ", "<domain id='3' "),
            ),
            ([B], domain(mount("/dev/nvidia1"))),
            ([A], domain(node("/dev/nvidia0"), theirs)),
            ([A], domain(node("/dev/nvidia0"), edited)),
            ([B], guest.to_xml()),
            ([gone], domain(metadata=domain_xml.GuestMetaGPUs((gone,)).to_xml())),
        ):
            self.assertNames(expected, xml)

    def test_a_container_that_runs_reaches_what_its_nodes_lead_to(self) -> None:
        """By its nodes' names as they are now, whatever they were when it was started"""
        ours = domain_xml.GuestMetaGPUs((A, C)).to_xml()
        nodes = node("/dev/nvidia0") + node("/dev/nvidia1")
        xml = domain(nodes, ours)
        active = xml.replace("<domain ", "<domain id='3' ")
        led = frozenset({A, B})
        expected = domains.DomainDevices(
            frozenset({A, C}), frozenset({B}), opened=led, led=led, run="3"
        )
        self.assertEqual(expected, domains.named_in(active, PARTS))
        self.assertEqual(domains.DomainDevices(frozenset({A, C})), domains.named_in(xml, PARTS))
        self.assertNames([A, B, C], active)

    def test_what_a_vm_that_runs_can_open_is_its_own(self) -> None:
        xml = domain(hostdev("0x0000", "0x04"), domain_xml.GuestMetaGPUs((A,)).to_xml())
        for kvm in (xml, xml.replace("'lxc'", "'kvm'")):
            active = kvm.replace("<domain ", "<domain id='3' ")
            self.assertEqual({A}, domains.named_in(active, PARTS).opened)
            self.assertEqual(frozenset(), domains.named_in(kvm, PARTS).opened)

    def test_the_nodes_of_cells(self) -> None:
        """Those of a running guest, but those that nova-gpu gives to one without cells of Nova's"""
        xml = domain(hostdev("0x0000", "0x04"))
        running = xml.replace("<domain ", "<domain id='3' ")
        for mode, nodeset, expected in (
            ("strict", "0-1,3", {0, 1, 3}),
            ("strict", "2", {2}),
            ("strict", "^x", set()),
            ("preferred", "1", set()),
        ):
            node = f"<numatune><memnode cellid='0' mode='{mode}' nodeset='{nodeset}'/></numatune>"
            of_running, defined = (
                domains.named_in(text.replace("<devices>", f"{node}<devices>"), PARTS)
                for text in (running, xml)
            )
            self.assertEqual((expected, frozenset()), (of_running.cells, defined.cells))

    def test_a_node_by_another_name(self) -> None:
        numbers = {"/dev/dri/by-path/pci-0000:05:00.0-render": 5, "/dev/null": 1}
        parts = domains.Parts(
            PARTS.card_by_node, {}, {4: "/dev/nvidia0", 5: "/dev/dri/card1"}, numbers.get
        )
        xml = domain("".join(map(node, [*numbers, "/dev/fuse"])))
        self.assertEqual({B}, domains.gpus_in(xml, parts))

    def test_a_virtual_function_is_the_vgpu_that_the_metadata_says(self) -> None:
        vf, other = cards.addresses("0000:3b:00.4", "0000:3b:00.5")
        parts = domains.Parts({}, {vf: vf, other: other})
        slot = Slot(vf, "nvidia-1155", 0)
        metadata = f"<g:gpus xmlns:g='{domains.NAMESPACE}'><g:gpu address='{slot}'/></g:gpus>"
        devices = [hostdev("0x0000", "0x3b", function=address.function) for address in (vf, other)]
        self.assertEqual({slot}, domains.gpus_in(domain(devices[0], metadata), parts))
        self.assertEqual({slot, other}, domains.gpus_in(domain("".join(devices), metadata), parts))
        self.assertEqual({vf}, domains.gpus_in(domain(devices[0]), parts))

    def test_vgpus_of_a_guest_that_stock_nova_has_started(self) -> None:
        """Its domain has no metadata: it names functions and mediated devices."""
        guest, made = "6f70656e-7374-4163-8b20-697320667265", "4b20d080-1b54-4048-85b3-a6a62d165c01"
        (vf,) = cards.addresses("0000:3b:00.4")
        function, mediated = Slot(vf, "nvidia-1155", 0), Slot.of_device(A, "nvidia-35", made)
        other = Slot(B, "nvidia-35", 0)
        parts = domains.Parts({}, {vf: vf}, vgpus_by_guest={guest: [function, mediated, other]})
        mdev = f"<hostdev type='mdev'><source><address uuid='{made}'/></source></hostdev>"
        xml = domain(hostdev("0x0000", "0x3b", function=4) + mdev)
        own = xml.replace("<name>one</name>", f"<name>one</name><uuid>{guest}</uuid>")
        self.assertEqual({function, mediated}, domains.gpus_in(own, parts))
        self.assertEqual({vf}, domains.gpus_in(xml, parts))  # of another domain


class Gone(libvirt.libvirtError):
    def get_error_code(self) -> int:
        return int(libvirt.VIR_ERR_NO_DOMAIN)


class Broken(Gone):
    def get_error_code(self) -> int:
        return int(libvirt.VIR_ERR_INTERNAL_ERROR)


class Guest:
    def __init__(
        self, uuid: str, xml: str | libvirt.libvirtError, next_time: str | None = None
    ) -> None:
        """:param next_time: its XML when it starts again"""
        self.uuid = uuid
        self._xml = xml
        self._next_time = next_time

    def get_xml_desc(self, dump_inactive: bool = False) -> str:
        if dump_inactive and self._next_time is not None:
            return self._next_time
        if isinstance(self._xml, str):
            return self._xml
        raise self._xml


class Host:
    def __init__(self, *guests: Guest) -> None:
        self._guests = guests

    def list_guests(self, only_running: bool = True, only_guests: bool = True) -> Sequence[Guest]:
        return () if only_running else self._guests


class ByDomainTest(unittest.TestCase):
    def assertLooked(self, expected: Mapping[str, set[object]], host: Any) -> None:
        devices_by_domain = domains.look(host, PARTS)
        self.assertEqual(
            expected, {uuid: devices.every for uuid, devices in devices_by_domain.items()}
        )

    def test_what_a_stranger_gets_when_it_starts_again(self) -> None:
        """As ``virsh attach-device --config`` has it while it runs"""
        now = domain(node("/dev/nvidia0")).replace("<domain ", "<domain id='7' ")
        later = domain(node("/dev/nvidia0") + node("/dev/nvidia1"))
        host = Host(Guest("one", now, later))
        self.assertLooked({"one": {A, B}}, host)
        self.assertEqual({"/dev/nvidia0", "/dev/nvidia1"}, domains.device_nodes(host))
        novas = now.replace("<metadata>", f"<metadata><x xmlns='{vconfig.NOVA_NS}'/>")
        host = Host(Guest("one", novas, later))
        self.assertLooked({"one": {A}}, host)

    def test_each_that_can_be_read(self) -> None:
        """One may be gone since it was listed; one that is broken is not nothing."""
        two = Guest("two", domain(node("/dev/nvidia1") + mount("/a") + mount("/b")))
        host = Host(Guest("one", Gone("gone")), two, Guest("three", domain()))
        self.assertLooked({"two": {B}, "three": set()}, host)
        self.assertEqual({"/a", "/b"}, domains.mount_sources(host))
        with self.assertRaisesRegex(exception.DomainsUnreadable, "broken"):
            domains.look(Host(Guest("one", Broken("broken")), two), PARTS)


class WithoutTest(unittest.TestCase):
    """Of a guest that is stopped and has given its GPUs back"""

    OURS = f"<g:gpus xmlns:g='{domains.NAMESPACE}'>{{}}</g:gpus>"

    def without(self, devices: str, metadata: str, gone: Device, parts: domains.Parts) -> str:
        ours = self.OURS.format(
            "".join(f"<g:gpu address='{address}'/>" for address in metadata.split())
        )
        return domains.without(domain(devices, ours), {gone}, parts, set())

    def test_mig_instances(self) -> None:
        """The card's node stays for another one; without one it would count as the whole card."""
        first, second = (Slot(A, "1g.18gb", number) for number in (900, 1000))
        caps = {first: "/dev/nvidia-caps/nvidia-cap9", second: "/dev/nvidia-caps/nvidia-cap10"}
        divided = dataclasses.replace(
            PARTS,
            card_by_node={**PARTS.card_by_node, **{cap: slot for slot, cap in caps.items()}},
            nodes_by_instance={slot: frozenset({"/dev/nvidia0", caps[slot]}) for slot in caps},
        )
        both = "".join(
            add(path) for path in ("/dev/nvidia0", *caps.values()) for add in (node, mount)
        )
        left = self.without(both, f"{first} {second}", first, divided)
        self.assertEqual(frozenset({second}), domains.gpus_in(left, divided))
        self.assertEqual([True, False], [path in left for path in ("/dev/nvidia0<", "nvidia-cap9")])
        for parts in (divided, PARTS):  # divided still, or made whole since
            others, alone = node("/dev/nvidiactl"), node("/dev/nvidia0") + mount("/dev/nvidia0")
            left = self.without(alone + others, str(first), first, parts)
            self.assertEqual(domain(others, self.OURS.format("")), self.plain(left))

    def plain(self, xml: str) -> str:
        """As it was written here"""
        text = xml.replace('"', "'").replace(f"<g:gpus xmlns:g='{domains.NAMESPACE}'/>", "OURS")
        return text.replace("OURS", self.OURS.format(""))


class PartsTest(HostTestCase):
    NODES = nodes.Nodes.FILES

    def test_all_that_leads_to_a_card_and_nothing_that_leads_to_more(self) -> None:
        self.host.add_gpu("0000:3b:00.0", "10de", "25b6", companions=[pci.AUDIO])
        self.host.add_gpu("0000:5e:00.0", "1002", "740f")
        path, dev = self.host.path("0000:3b:00.0"), self.host.roots.dev
        drm.write_card(path, dev, nodes.Nodes.FILES, 7, vendor_id="10de")
        first, second = self.host.gpus()
        parts = domains.parts([first, second], self.host.roots)
        nodes_of_first = ("/dev/nvidia0", "/dev/dri/card7", "/dev/dri/renderD135")
        expected = dict.fromkeys(nodes_of_first, first.address)
        expected |= dict.fromkeys(("/dev/dri/card1", "/dev/dri/renderD129"), second.address)
        self.assertEqual(expected, parts.card_by_node)
        functions = dict.fromkeys(first.functions, first.address)
        self.assertEqual(functions | {second.address: second.address}, parts.card_by_function)

    def test_of_two_mig_instances_one_takes_all_of_its_nodes(self) -> None:
        """The GPU instance's node is its only compute instance's, and opens nothing alone; the card
        that is given whole was divided since, and nobody tells into what."""
        self.host.add_gpu("0000:3b:00.0", "10de", "2335", minor=0, mig=[(1, 0), (2, 0)])
        self.host.add_gpu("0000:5e:00.0", "10de", "2335", minor=1, mig=[(1, 0)])
        parted, whole = self.host.gpus()
        address = parted.address
        instances = Parent(VGPUKind.INSTANCE, {}, {"1g.18gb": 2}, {"1g.18gb": (100, 200)})
        card = DividedCard({"1g.18gb": VGPUType("1g.18gb", per_card=2)}, {address: instances})
        first, second = Slot(address, "1g.18gb", 100), Slot(address, "1g.18gb", 200)
        parts = domains.parts([whole], self.host.roots, [card])

        def caps(gpu: int, *instance: int) -> str:
            return f"/dev/nvidia-caps/nvidia-cap{nvidia.cap_minor(gpu, *instance)}"

        has = ["/dev/nvidia0", caps(0, 1), caps(0, 1, 0), caps(0, 2), "/dev/nvidia1", caps(1, 1)]
        xml = domain("".join(map(node, has)), domain_xml.GuestMetaGPUs((first,)).to_xml())
        active = xml.replace("<domain ", "<domain id='3' ")
        reached = frozenset({second, whole.address})
        own = frozenset({first})
        expected = domains.DomainDevices(own, reached, own, reached | own, "3")
        self.assertEqual(expected, domains.named_in(active, parts))
        active = active.replace("</devices>", f"{node(caps(1, 1, 0))}</devices>")
        part = Slot(whole.address, "mig", 100)
        self.assertEqual({first, part}, domains.named_in(active, parts).opened)
        others = [caps(0, 2), "/dev/nvidia1", caps(1, 1), caps(1, 1, 0)]
        bound = "".join(f"<filesystem><source dir='{path}'/></filesystem>" for path in others)
        for path in others:
            active = active.replace(node(path), "")
        active = active.replace("</devices>", f"{bound}</devices>")
        plain = domains.DomainDevices(own, frozenset(), own, own, "3")
        self.assertEqual(plain, domains.named_in(active, parts))
        # What it could open before in the same run it may have open, but for its own.
        self.assertEqual(reached, plain.since(expected).reached)
        self.assertEqual(reached, plain.since(plain.since(expected)).reached)
        self.assertEqual(plain, plain.since(dataclasses.replace(expected, run="4")))
        self.assertEqual(plain, plain.since(None))
        again = dataclasses.replace(plain, led=frozenset({Slot(address, "3g.71gb", 100)}))
        self.assertEqual(frozenset(), plain.since(again).reached)

    def test_a_part_of_what_it_has_whole_is_not_anothers(self) -> None:
        """Before the service knows that an instance has the card whole, which was divided since."""
        self.host.add_gpu("0000:3b:00.0", "10de", "2335", minor=0, mig=[(1, 0)])
        (gpu,) = self.host.gpus()
        instances = Parent(VGPUKind.INSTANCE, {}, {"1g.18gb": 1}, {"1g.18gb": (100,)})
        card = DividedCard({"1g.18gb": VGPUType("1g.18gb", per_card=1)}, {gpu.address: instances})
        parts = domains.parts([], self.host.roots, [card])
        made = "".join(node(path) for path in nodes_of_host.card_nodes(gpu, self.host.roots))
        xml = domain(made, domain_xml.GuestMetaGPUs((gpu.address,)).to_xml())
        active = xml.replace("<domain ", "<domain id='3' ")
        self.assertEqual(
            {Slot(gpu.address, "1g.18gb", 100)}, domains.named_in(active, parts).reached
        )
