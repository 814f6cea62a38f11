# SPDX-License-Identifier: Apache-2.0
"""Where the cards are and who has them: ``nova-gpu topology`` and ``nova-gpu show``."""

from __future__ import annotations

import dataclasses
import json
import pathlib

from nova_gpu.cmd import cards, holders, show, this_host, topology
from nova_gpu.core import exception
from nova_gpu.core.model import GPU, Link, LinkType, PciAddress, Product
from nova_gpu.core.topology import nearness
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.usage.domains import DomainDevices
from tests.fixtures import cleaned, hosts, nodes
from tests.fixtures.bases import commands as base
from tests.fixtures.cards import reasons

_GUIDE = pathlib.Path(__file__).parents[3] / "doc/source/reference/nova-gpu"
_UUID = "67c6091b-92d6-4ef4-b8b3-194ffd7b12dc"
_ADDRESS, _SWITCH = map(PciAddress.parse, ("0000:05:00.0", "0000:01:00.0"))


class TopologyTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.virt_type("lxc")
        self.libvirt("lxc+unix:///?socket=/nonexistent")
        self.config.config(state_path=str(self.root))

    def libvirt(self, uri: str) -> None:
        self.config.config(group="libvirt", connection_uri=uri)

    def build(self, machine: str) -> hosts.Host:
        return hosts.build(machine, self.root, nodes.Nodes.FILES)

    def topology(self, *, as_json: bool = False) -> str:
        return self.printed(0, lambda: topology.main(discovery.Discovery(), as_json=as_json))

    def show(self, status: int, address: str, *, as_json: bool) -> str:
        host = discovery.Discovery()
        return self.printed(status, lambda: show.main(host, address, as_json=as_json))

    def test_the_picture_of_the_guide(self) -> None:
        cleaned.prove(self.build("switched-8"), self.root)
        host_cards = cards.read(discovery.Discovery())
        host_cards[2] = cards.Card(
            host_cards[2].gpu, reasons("it is in quarantine since noon: no reset; replace it")
        )
        held = {host_cards[0].gpu.address: (_UUID,), host_cards[1].gpu.address: (_UUID,)}
        text = "\n".join(topology.picture(host_cards, held, None)) + "\n"
        self.assertEqual((_GUIDE / "topology.txt").read_text(), text)

    def test_the_cells_of_a_guest(self) -> None:
        self.build("switched-8")
        host_cards = cards.read(discovery.Discovery())
        near, far = (next(c.gpu for c in host_cards if c.gpu.numa_node == node) for node in (0, 1))
        has = frozenset({near.address, far.address})
        named = {_UUID: DomainDevices(has, cells=frozenset({0})), "without": DomainDevices(has)}
        held, nodes = holders.by_card(named), holders.cells(named)
        self.assertEqual({far.address: (_UUID,)}, holders.remote((near, far), named))
        text = f"instance {_UUID}, cells on NUMA 0, without"
        self.assertIn(text, "\n".join(topology.picture(host_cards, held, None, nodes)))
        (described,) = (
            cards.described(card, held, None, nodes) for card in host_cards if card.gpu is far
        )
        self.assertEqual({_UUID: [0]}, described["cells"])
        for table in (cards.table([described]), show.table(described, None)):
            self.assertIn(f"{_UUID}, cells on NUMA 0", table)

    def test_libvirt_answers(self) -> None:
        self.libvirt("test:///default")
        host = self.build("displays")
        (guest,) = this_host.Reader().list_guests(only_running=False)
        self.assertIn("<domain", guest.get_xml_desc())
        self.assertEqual(
            ({}, {}, None), holders.read(discovery.Discovery(), discovery.Discovery().find())
        )
        picture = self.topology()
        self.assertRegex(picture, "0000:22:00.0  Tesla K40m +not offered: it was not cleaned")
        cleaned.prove(host, self.root)
        self.assertRegex(self.topology(), "0000:22:00.0  Tesla K40m +free")

    def test_one_card(self) -> None:
        self.build("displays")
        shown = self.show(0, "0000:21:00.1", as_json=True)
        described = json.loads(shown)
        self.assertEqual("0000:21:00.0", described["address"])
        self.assertEqual({"0000:21:00.0": "nvidia", "0000:21:00.1": None}, described["functions"])
        text = self.show(0, "0000:21:00.0", as_json=False)
        self.assertRegex(text, r"\| reason +\| it is the display the host booted on")
        self.assertRegex(text, r"\| +\| 0000:21:00.1 bound to no driver")
        self.assertRegex(text, r"\| memory_mib +\| unknown")
        missing = self.show(1, "0000:aa:00.0", as_json=True)
        self.assertIn("there is no GPU at 0000:aa:00.0", missing)
        self.assertRaises(
            exception.InvalidPciAddress, show.main, discovery.Discovery(), "aa:00.0", as_json=True
        )


class GuestTest(base.CommandTestCase):
    """Where there is no libvirt nothing is offered to anybody."""

    def test_topology(self) -> None:
        self.configure("kvm")
        host = hosts.Host(self.root, iommu=False)
        for port, card in enumerate(("0000:23:00.0", "0000:24:00.0")):
            ports = f"pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:{port:02x}.0"
            host.add_gpu_at(f"{ports}/{card}", 0, "10de", "2321")
        shown = self.shown("topology")
        self.assertRegex(shown, r"switch 0000:21:00.0\n +GPU0  0000:23:00.0  H100L 94GB\n")
        self.assertIn("libvirt is not installed: instances are not shown, only the places", shown)
        for card in json.loads(self.shown("topology", "--json")):
            self.assertEqual("0000:21:00.0", card["pcie_switch"])
            self.assertFalse({"offered", "instances"} & card.keys())

    def shown(self, *words: str) -> str:
        # So an import raises what it raises of a module that is missing.
        program = f"import sys; sys.modules['libvirt'] = None; {base.MAIN.format('gpu')}"
        done = base.fresh(program, "--config-file", self.conf, *words)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        return done.stdout


class NearnessTest(base.HostTestCase):
    def test_each(self) -> None:
        one = GPU(PciAddress.parse("0000:04:00.0"), Product("10de", "2335"), 0x030200, numa_node=0)
        other = dataclasses.replace(one, address=_ADDRESS)
        at_root, at_switch = {"pci_root": "pci0000:00"}, {"pcie_switch": _SWITCH}
        for of_both, of_other, expected in (
            ({}, {}, "NODE"),
            ({}, {"numa_node": 1}, "SYS"),
            ({}, {"numa_node": None}, "?"),
            (at_root, {}, "PHB"),
            (at_root | at_switch, {}, "PIX"),
            ({}, {"links": (Link(one.address, LinkType.NVLINK, 18),)}, "NV18"),
            ({}, {"links": (Link(one.address, LinkType.XGMI, 18),)}, "XGMI"),
        ):
            first = dataclasses.replace(one, **of_both)
            second = dataclasses.replace(other, **of_both | of_other)
            self.assertEqual(expected, nearness.between(second, first))
