# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess

import testtools

from nova_gpu.cmd import cards, output
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, VGPUKind, VGPUType
from nova_gpu.host.state import quarantine
from tests.fixtures import cards as made
from tests.fixtures import cleaned, hosts, kernel, vgpu
from tests.fixtures.bases import commands as base
from tests.fixtures.cards import reasons

CARD = "0000:04:00.0"


class TableTest(testtools.TestCase):
    def test_mig_instances(self):
        types = {"1g.18gb": VGPUType("1g.18gb", memory_mib=16384, per_card=2, slices=1)}
        parent = Parent(VGPUKind.INSTANCE, {}, {"1g.18gb": 2}, {"1g.18gb": (900, 1000)})
        (shown,) = all_of_it = cards.describe_vgpus(
            DividedCard(types, {PciAddress.parse(CARD): parent})
        )
        self.assertEqual(
            (True, False, 2, 0), tuple(shown[key] for key in ("mig", "plain", "made", "available"))
        )
        self.assertEqual(["1g.18gb: 2 MIG instances, 16384 MiB"], list(cards.vgpu_lines(all_of_it)))

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
        rows = json.loads(done.stdout)
        self.assertEqual(
            [("0000:04:00.0", True), ("0000:05:00.0", False)],
            [(card["address"], card["offered"]) for card in rows],
        )
        self.assertEqual("fermi", rows[0]["architecture"])
        self.assertIsNone(rows[0]["instances"])
        self.assertEqual("", done.stderr)
        self.assertIn(f"nova-gpu: options read from {self.conf}\n", self.run_list().stderr)
        self.assertIn("vfio-pci", rows[1]["reason"])

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
        self.assertEqual([0, 3, 0, 0], [entry["available"] for entry in card["vgpus"]])
        self.configure("kvm", "vgpu_types =")
        (card,) = json.loads(self.run_list("--json").stdout)
        self.assertIsNone(card["vgpus"])

    def test_a_host_that_cannot_be_read_is_named(self):
        done = self.run_list()
        self.assertEqual(1, done.returncode)
        self.assertIn(f"{self.root}/sys", done.stderr)
        self.assertIn("[gpu]sysfs_root", done.stderr)


class LogTest(base.CommandTestCase):
    def test_no_file_of_nova_computes(self):
        folder = self.root / "log"
        folder.mkdir()
        self.configure("kvm", f"[DEFAULT]\nlog_dir = {folder}\nlog_file = nova-compute.log")
        hosts.Host(self.root)
        self.nova_gpu("list")
        self.assertEqual([], [*folder.iterdir()])


class HelpTest(base.CommandTestCase):
    def test_without_the_completion_of_oslo_config(self) -> None:
        """That of Nova 29 has none."""
        old = "from oslo_config import cfg; del cfg.ConfigOpts._shell_completion_opt; "
        done = base.fresh(old + base.MAIN.format("gpu"), "--help")
        self.assertEqual(("", 0), (done.stderr, done.returncode))

    def test_wrong_words(self) -> None:
        commands = "commands: list, show, topology, "
        for line, text in (
            ("lst", f"nova-gpu: there is no command lst; did you mean list? {commands}"),
            ("--debug zz", f"nova-gpu: there is no command zz; {commands}"),
            ("list --jon", "nova-gpu: unrecognized arguments: --jon; see nova-gpu --help\n"),
            ("show", "usage: nova-gpu show [-h] "),
        ):
            with self.subTest(line):
                done = base.fresh(base.MAIN.format("gpu"), *line.split())
                self.assertEqual((2, ""), (done.returncode, done.stdout))
                self.assertEqual(text, done.stderr[: len(text)])
                self.assertEqual(1 + (line == "show"), done.stderr.count("\n"))


class QuarantineTest(base.CommandTestCase):
    def setUp(self) -> None:
        super().setUp()
        hosts.Host(self.root).add_gpu(CARD, "10de", "2335", driver="nvidia")

    def test_listed_by_both_commands(self) -> None:
        self.configure("lxc")
        entry = quarantine.entry(made.card(CARD), "it has a stain", "wipe it")
        quarantine.put(self.root / "gpu-quarantine", entry)
        (card,) = json.loads(self.nova_gpu("list", "--json").stdout)
        self.assertFalse(card["offered"])
        self.assertIn("it has a stain; wipe it", card["reason"])
        listed = self.nova_gpu("quarantine", "list").stdout
        self.assertRegex(listed, rf"^{CARD} \(10de:2335\): since 20.*: it has a stain; wipe it")
        self.assertEqual(0, self.nova_gpu("quarantine", "release", CARD).returncode)
        self.assertEqual("[]\n", self.nova_gpu("quarantine", "list", "--json").stdout)
        done = self.nova_gpu("quarantine", "release", CARD)
        self.assertEqual(1, done.returncode)
        self.assertIn(f"GPU {CARD} is not in quarantine", done.stdout + done.stderr)
        self.assertEqual(2, self.nova_gpu("quarantine", "release", "nonsense").returncode)
        self.assertEqual(2, self.nova_gpu("quarantine", "release").returncode)

    def test_card_that_could_not_be_given(self) -> None:
        """It is offered again soon, unless it is in quarantine too."""
        self.configure("kvm")
        entry = quarantine.entry(made.card(CARD), "it is in use by X (pid 1)", "end that first")
        quarantine.put(self.root / "gpu-unbound", entry)
        (card,) = json.loads(self.nova_gpu("list", "--json").stdout)
        self.assertFalse(card["offered"])
        self.assertIn("could not be bound for a guest at 20", card["reason"])
        self.assertIn("in use by X (pid 1); end that first", card["reason"])


class OutputTest(base.CommandTestCase):
    """Output that nobody reads to its end, as with ``nova-gpu list | head -1``"""

    def setUp(self) -> None:
        super().setUp()
        self.configure("lxc")
        hosts.Host(self.root).add_gpu("0000:04:00.0", "10de", "1091", driver="nvidia")

    def unread(self, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """As it ends where the reader of its standard output has ended before it began"""
        reader, writer = os.pipe()
        os.close(reader)
        streams = {"capture_output": False, "stdout": writer, "stderr": subprocess.PIPE}
        line = (base.MAIN.format(program), "--config-file", self.conf, *words)
        try:
            return base.fresh(*line, **streams)
        finally:
            os.close(writer)

    def test_not_a_word(self) -> None:
        done = self.unread("gpu", "list")
        self.assertEqual(("", 141), (done.stderr, done.returncode))
        # Of what argparse prints it has looked after itself.
        self.assertEqual("", self.unread("status", "--help").stderr)

    def test_another_pipe_that_broke_is_no_reader_of_ours(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)

        def write() -> None:
            with output.while_read():
                os.write(writer, b"x")

        self.assertRaises(BrokenPipeError, write)
