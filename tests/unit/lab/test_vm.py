# SPDX-License-Identifier: Apache-2.0
"""The parts of the VM's tools that need no VM."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import fixtures
import testtools

from lab.cloud import steps
from lab.vm import boot, build_cache, cards, environment, modules
from tests.fixtures import processes

CONSOLE = "[    0.9] some driver said so\r\nlabvm: up 4.95\r\n"
PANIC = "[   71.2] Kernel panic - not syncing: corrupted stack end detected inside scheduler\r\n"


class VerdictTest(testtools.TestCase):
    def test_exit_status(self) -> None:
        for status in (0, 1, 77):
            console = f"{CONSOLE}labvm: EXIT {status}\r\n[ 99.1] reboot: Power down\r\n"
            self.assertEqual((boot.End.EXIT, status, ""), boot.verdict(console))

    def test_panic(self) -> None:
        end, status, reason = boot.verdict(CONSOLE + PANIC)
        self.assertEqual((boot.End.PANIC, None), (end, status))
        self.assertEqual(PANIC.partition("] ")[2].strip(), reason)

    def test_warning_before_the_exit_is_no_panic(self) -> None:
        console = f"{CONSOLE}[ 50.0] BUG: soft lockup\r\nlabvm: EXIT 1\r\n"
        self.assertEqual((boot.End.EXIT, 1, ""), boot.verdict(console))

    def test_without_a_word(self) -> None:
        self.assertEqual((boot.End.LOST, None, ""), boot.verdict(CONSOLE))

    def test_which_ends_are_the_commands(self) -> None:
        valid = [end for end in boot.End if boot.Boot(end, None, 1.0).is_valid]
        self.assertEqual([boot.End.EXIT, boot.End.LIMIT, boot.End.EMULATOR], valid)


class TiedTest(testtools.TestCase):
    def test_ends_with_who_started_it(self) -> None:
        # Who ends before the child is tied to it is not seen to end.
        script = (
            "import subprocess, sys, time\n"
            "null = subprocess.DEVNULL\n"
            "child = subprocess.Popen(sys.argv[1:], stdout=null, stderr=null)\n"
            "while open(f'/proc/{child.pid}/comm').read() != 'sleep\\n':\n"
            "    time.sleep(0.01)\n"
            "print(child.pid)\n"
        )
        argv = [sys.executable, "-c", script, *boot.TIED, "sleep", "600"]
        pid = int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        self.assertTrue(processes.ends(pid))


class CommandTest(testtools.TestCase):
    def test_words_stay_words(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        command = ["printf", "%s|", "two words", "$HOME", "$NAME"]
        boot.write_command(folder, command, {"NAME": "it's"})

        ran = subprocess.run(["sh", folder / "command"], capture_output=True, text=True, check=True)
        self.assertEqual("two words|$HOME|$NAME|", ran.stdout)

        boot.write_command(folder, ["sh", "-c", 'echo "$NAME"'], {"NAME": "it's"})
        ran = subprocess.run(["sh", folder / "command"], capture_output=True, text=True, check=True)
        self.assertEqual("it's\n", ran.stdout)


class MadeTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.made: list[pathlib.Path] = []

    def make(self, folder: pathlib.Path) -> None:
        self.made.append(folder)
        (folder / "file").write_text("content")

    def test_once(self) -> None:
        first = build_cache.made(self.state, "disk", "a", self.make)
        self.assertEqual(first, build_cache.made(self.state, "disk", "a", self.make))
        self.assertEqual(1, len(self.made))
        self.assertEqual("content", (first / "file").read_text())

    def test_what_failed_is_made_again(self) -> None:
        def fail(folder: pathlib.Path) -> None:
            (folder / "half").write_text("")
            raise OSError("disk full")

        self.assertRaises(OSError, build_cache.made, self.state, "disk", "a", fail)
        folder = build_cache.made(self.state, "disk", "a", self.make)
        self.assertEqual(["file"], [path.name for path in folder.iterdir()])

    def test_prune_keeps_other_kinds(self) -> None:
        old, new, other = (
            build_cache.made(self.state, kind, key, self.make)
            for kind, key in (("disk", "a"), ("disk", "b"), ("kernel", "a"))
        )
        build_cache.prune(self.state, {new})
        self.assertEqual([False, True, True], [path.exists() for path in (old, new, other)])

    def test_digest_is_of_a_files_content(self) -> None:
        file = self.state / "file"
        file.write_text("one")
        before = build_cache.digest("x", file)
        self.assertEqual(before, build_cache.digest("x", file))
        file.write_text("two")
        self.assertNotEqual(before, build_cache.digest("x", file))


class SamplesTest(testtools.TestCase):
    def test_packages_of_a_kernel(self) -> None:
        for version, packages in (
            (
                "6.1.0-56-amd64",
                "linux-headers-6.1.0-56-amd64 linux-headers-6.1.0-56-common linux-kbuild-6.1"
                " linux-compiler-gcc-12-x86 linux-source-6.1",
            ),
            (
                "6.12.118+deb13-amd64",
                "linux-headers-6.12.118+deb13-amd64 linux-headers-6.12.118+deb13-common"
                " linux-kbuild-6.12.118+deb13 linux-source-6.12",
            ),
        ):
            self.assertEqual(packages.split(), modules.packages(version))

    def test_parent_is_any_function(self) -> None:
        owns = ("mbochs_dev", "mtty_dev.dev")
        for sample, own in zip(modules.samples("6.12.118+deb13-amd64"), owns, strict=True):
            text = modules.changed(sample, "".join(before for before, _ in sample.changes))
            self.assertEqual(1, text.count("module_param(parent, charp, 0444);"))
            self.assertEqual(1, text.count(f", parent_or(&{own}),"))
            # It is called after it is defined.
            self.assertLess(text.index("*parent_or(struct"), text.index("_dev_init(void)"))

    def test_line_logs_nothing(self) -> None:
        _, line = modules.samples("6.12.118+deb13-amd64")
        text = "".join(before for before, _ in line.changes)
        self.assertIn("log_ops", text)
        self.assertNotIn("log_ops", modules.changed(line, text))

    def test_bookworms_line_cannot_be_saved(self) -> None:
        names = [sample.name for sample in modules.samples("6.1.0-56-amd64")]
        self.assertEqual([modules.NAME], names)

    def test_another_sample_is_refused(self) -> None:
        _, line = modules.samples("6.12.118+deb13-amd64")
        text = "".join(before for before, _ in line.changes)
        for other in (text * 2, text.replace("mtty_log_ops", "log_ops")):
            error = self.assertRaises(steps.Failed, modules.changed, line, other)
            self.assertIn("mtty.c has ", str(error))


class FunctionsTest(testtools.TestCase):
    def test_types_are_those_of_machines(self) -> None:
        recorded = (build_cache.ROOT / "tests/recorded/typed.yaml").read_text()
        types = re.findall(r'\{ (\d+), "(.+)", \d+, \w+ \},', modules.FUNCTIONS.read_text())
        self.assertEqual(4, len(types))
        for number, name in types:
            self.assertRegex(recorded, rf"\b{number} *: (\{{name: )?{re.escape(name)}\b")


class CardsTest(testtools.TestCase):
    def test_every_bus_is_named_once(self) -> None:
        words = " ".join(cards.arguments())
        ids = re.findall(r"\bid=(\w+)", words)
        self.assertEqual(sorted(set(ids)), sorted(ids))
        self.assertEqual(set(), set(re.findall(r"\bbus=(\w+),", words)) - {*ids, "pcie"})
        self.assertNotIn("{", words)

    def test_addresses_are_those_of_the_slots(self) -> None:
        """The kernel numbers the buses from a root's on: one behind each port and each bridge."""
        numbers = {"pcie.0": 0}
        found = set()
        for word in cards.arguments():
            driver, _, options = word.partition(",")
            if match := re.search(r"bus_nr=(\d+)", options):
                root = re.findall(r"id=(\w+)", options)[0]
                numbers[root] = int(match[1])
            elif match := re.search(r"(?:port|upstream|downstream|bridge)$", driver):
                above = re.findall(r"\bbus=([\w.]+)", options)[0]
                root = above if above in numbers else root
                numbers[root] += 1
            elif "port" in options:
                found.add(f"0000:{numbers[root]:02x}:00.0")
        self.assertLess(
            {*cards.WHOLE, cards.DIVIDED, *cards.LARGE, cards.LARGEST, *cards.BOARD}, found
        )


class EnvironmentTest(testtools.TestCase):
    def test_without_nova(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.assertIn(str(folder), environment.obstacle(folder) or "")
