# SPDX-License-Identifier: Apache-2.0
import json

import testtools

from nova_gpu.cmd import cards
from nova_gpu.core.model import GPU, Link, LinkType, PciAddress, Product
from nova_gpu.core.topology import topology
from tests.fixtures import cleaned, hosts, kernel, nvidia, vgpu
from tests.fixtures import nvml as machines
from tests.fixtures.bases import commands as base
from tests.fixtures.cards import reasons


class TableTest(testtools.TestCase):
    def test_a_card_that_an_instance_has_needs_no_proof(self):
        card = GPU(PciAddress.parse("0000:01:00.0"), Product("10de", "2335"), 0x030200)
        dirty = cards.Card(card, dirty="it was not cleaned")
        held = {card.address: ("one",)}
        for has, unknown, reason in (
            (held, None, None),
            ({}, None, "it was not cleaned"),
            ({}, "no answer", "it was not cleaned, unless an instance has it"),
        ):
            described = cards.described(dirty, has, unknown)
            self.assertEqual((reason is None, reason), (described["offered"], described["reason"]))
        ill = cards.Card(card, reasons("it is ill"), dirty="it was not cleaned")
        self.assertEqual("it is ill", cards.described(ill, held, None)["reason"])

    def test_unknown_is_said(self):
        card = GPU(PciAddress.parse("0000:01:00.0"), Product("10de", "ffff"), 0x030200)
        shown = cards.table(
            [cards.described(cards.Card(card, reasons("it is with nobody")), {}, None)]
        )
        self.assertIn("| unknown      | unknown    |", shown)
        self.assertIn("0000:01:00.0: it is with nobody", shown)
        self.assertIn("[gpu]product says what it is", shown)

    def test_a_known_one_needs_no_remark(self):
        card = GPU(
            PciAddress.parse("0000:01:00.0"),
            Product("10de", "2335", "H200", "hopper", 143771),
            0x030200,
            links=(Link(PciAddress.parse("0000:02:00.0"), LinkType.NVLINK, 18),),
        )
        described = cards.described(cards.Card(card), {card.address: ("one",)}, None)
        self.assertNotIn("unknown", cards.table([described]))
        self.assertEqual(
            [{"peer": "0000:02:00.0", "type": "nvlink", "width": 18}], described["links"]
        )
        self.assertRegex(cards.table([described]), r"\| yes +\| one +\|")

    def test_who_has_it_is_not_known(self):
        card = GPU(PciAddress.parse("0000:01:00.0"), Product("10de", "2335"), 0x030200)
        shown = cards.table([cards.described(cards.Card(card), {}, "no answer")], "no answer")
        self.assertRegex(shown, r"\| yes +\| unknown +\|")
        self.assertIn("Cannot tell which instance has which GPU: no answer", shown)


class ListTest(base.CommandTestCase):
    def setUp(self):
        super().setUp()
        self.configure("lxc")

    def run_list(self, *arguments):
        return self.nova_gpu("list", *arguments)

    def test_json(self):
        host = hosts.Host(self.root)
        host.add_gpu("0000:04:00.0", "10de", "1091", driver="nvidia")
        host.add_gpu("0000:05:00.0", "10de", "1091", driver="vfio-pci")
        cleaned.prove(host, self.root)
        done = self.run_list("--json")
        self.assertEqual(0, done.returncode, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(
            [("0000:04:00.0", True), ("0000:05:00.0", False)],
            [(card["address"], card["offered"]) for card in found],
        )
        self.assertEqual("fermi", found[0]["architecture"])
        self.assertIsNone(found[0]["instances"])
        self.assertEqual("", done.stderr)
        self.assertIn(f"nova-gpu: options from {self.conf}\n", self.run_list().stderr)
        self.assertIn("vfio-pci", found[1]["reason"])

    def test_what_was_not_cleaned(self):
        """Any user sees it who can read the state path."""
        self.configure("lxc", "[libvirt]\nconnection_uri = test:///default")
        host = hosts.Host(self.root)
        host.add_gpu("0000:04:00.0", "10de", "1091", driver="nvidia")
        never = "it was not cleaned since the host booted, or since its last guest; nova-compute"
        self.assertNotOffered(never)
        cleaned.prove(host, self.root)
        self.assertRegex(self.run_list().stdout, r"0000:04:00.0 .*\| yes +\| - +\|")
        kernel.boot(host, "another-boot")
        self.assertNotOffered("it was not cleaned since the host booted; nova-compute")
        (proof,) = (self.root / "gpu-clean").iterdir()
        proof.write_text("{}")
        self.assertNotOffered("the proof that it was cleaned cannot be read: ")
        proof.unlink()
        self.configure("lxc", "[libvirt]\nconnection_uri = lxc+unix:///?socket=/nonexistent")
        self.assertNotOffered(never)
        self.assertIn("why it cannot, unless an instance has it\n", self.run_list().stdout)

    def assertNotOffered(self, reason):
        shown = self.run_list().stdout
        self.assertRegex(shown, r"0000:04:00.0 .*\| no +\|")
        self.assertIn(f"0000:04:00.0: {reason}", shown)

    def test_what_nvml_tells_where_the_switches_are_not_on_pci(self):
        hosts.build("b200-8", self.root)
        self.configure("lxc", "nvml_timeout = 120\nnvml = true")
        library = self.useFixture(machines.Library())
        for spelling in machines.ABSENT:
            library.say(*machines.b200(spelling))
            words = ("--config-file", self.conf, "list", "--json")
            done = base.fresh(base.MAIN.format("gpu"), *words)
            self.assertEqual(0, done.returncode, done.stderr)
            found = json.loads(done.stdout)
            self.assertEqual([183359] * 8, [card["memory_mib"] for card in found], done.stderr)
            self.assertEqual(
                [nvidia.gpu_uuid(card["address"]) for card in found],
                [card["uuid"] for card in found],
            )
            gpus = [
                GPU(
                    PciAddress.parse(card["address"]),
                    Product("10de", "2901"),
                    0x030200,
                    links=tuple(
                        Link(PciAddress.parse(link["peer"]), LinkType.NVLINK, link["width"])
                        for link in card["links"]
                    ),
                )
                for card in found
            ]
            self.assertEqual([0] * 8, [*topology.circles(gpus).values()])

    def test_in_parts(self):
        self.configure("kvm")
        host = hosts.Host(self.root)
        host.add_gpu("0000:04:00.0", "10de", "1bb3", driver="nvidia")
        vgpu.add_types(host, "0000:04:00.0", vgpu.TESLA_P4)
        vgpu.make(host, "0000:04:00.0", "nvidia-64")
        left = {"nvidia-63": 0, "nvidia-64": 3, "nvidia-65": 0, "nvidia-66": 0}
        vgpu.set_available(host, "0000:04:00.0", left)
        shown = self.run_list().stdout
        self.assertIn("| in parts |", shown)
        self.assertIn(
            "0000:04:00.0: nvidia-64 (GRID P4-2Q): 1 made, 3 more possible, 2048 MiB, 4 heads, "
            "up to 7680x4320",
            shown,
        )
        (card,) = json.loads(self.run_list("--json").stdout)
        self.assertTrue(card["offered"])
        self.assertEqual([0, 3, 0, 0], [each["available"] for each in card["vgpus"]])
        self.configure("kvm", "vgpu_types =")
        (card,) = json.loads(self.run_list("--json").stdout)
        self.assertIsNone(card["vgpus"])

    def test_a_host_that_cannot_be_read_is_named(self):
        done = self.run_list()
        self.assertEqual(1, done.returncode)
        self.assertIn(f"{self.root}/sys", done.stderr)
        self.assertIn("[gpu]sysfs_root", done.stderr)

    def test_usage(self):
        self.assertEqual(2, self.nova_gpu("host").returncode)
        arguments = ("host", "prepare", "--apply", "--undo")
        self.assertEqual(2, self.nova_gpu(*arguments).returncode)


class LogTest(base.CommandTestCase):
    def test_no_file_of_nova_computes(self):
        folder = self.root / "log"
        folder.mkdir()
        self.configure("kvm", f"[DEFAULT]\nlog_dir = {folder}\nlog_file = nova-compute.log")
        hosts.Host(self.root)
        self.nova_gpu("list")
        self.assertEqual([], [*folder.iterdir()])
