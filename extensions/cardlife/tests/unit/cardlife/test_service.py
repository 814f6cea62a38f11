# SPDX-License-Identifier: Apache-2.0
"""A host whose cards are tested: all of nova-compute's part over a generated tree, real programs"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import time
from types import SimpleNamespace

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

import nova_gpu_cardlife.privsep
from nova_gpu.cmd import cards
from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host import child_process
from nova_gpu.host.state import quarantine
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu_cardlife import tests_of_cards
from nova_gpu_cardlife.cmd import retest
from nova_gpu_cardlife.host import records
from tests.fixtures import hosts, pci, vgpu
from tests.fixtures.compute import Compute
from tests.unit.cardlife.test_verdict import DISCOVERY, SOFTWARE, diag, result

ONE, OTHER, NEW = "0000:03:00.0", "0000:04:00.0", "0000:d8:00.0"
PASS = """echo '{"overall_severity": "PASS"}'"""
FAIL = """echo '{"overall_severity": "CRITICAL", "summary": "bad rows"}'; exit 1"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended stays a zombie where nothing waits for it."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


class _ServiceTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        for address in (ONE, OTHER):
            self.host.add_gpu(address, "10de", "2335", driver="vfio-pci")
        self.program = self.host.root / "program"
        self.write(PASS)
        self.compute = self.useFixture(Compute(self.host))
        self.addCleanup(self.end_processes)

    def write(self, script: str) -> None:
        """What a test does from now on"""
        self.program.write_text(script)

    def switch_on(self, *test: str, **options: object) -> None:
        self.compute.gpus.releases._retries.wait()
        self.compute.period()
        words = test or ("/bin/sh", str(self.program))
        self.compute.config(group="gpu", card_test=list(words), **options)
        self.compute.restart()
        self.provider = self.compute.provider("2335")

    def period(self) -> tuple[int, int]:
        """A minute, in which what has begun ends; total and reserved as Placement has them"""
        self.end()
        self.compute.period()
        return self.inventory()

    def inventory(self) -> tuple[int, int]:
        inventory = self.compute.tree.data(self.provider).inventory["PGPU"]
        return inventory["total"], inventory["reserved"]

    def end(self) -> None:
        for test in nova_gpu_cardlife.privsep.tests._tests.values():
            os.waitid(os.P_PID, test.process.pid, os.WEXITED | os.WNOWAIT)

    def end_processes(self) -> None:
        for address, test in tuple(nova_gpu_cardlife.privsep.tests._tests.items()):
            self.kill(test.process.pid)
            nova_gpu_cardlife.privsep.tests.outcome(address)

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def state(self, address: str) -> str | None:
        tested = records.read(tests_of_cards.folder(), PciAddress.parse(address))
        return tested.record.state if tested else None

    def reason(self, address: str) -> str:
        """As the commands say it"""
        rows = {str(card.gpu.address): card for card in cards.read(Discovery())}
        return rows[address].reason or ""

    def add(self, address: str = NEW) -> None:
        """A card; it is clean in the next period."""
        self.host.add_gpu(address, "10de", "2335", driver="vfio-pci")
        self.compute.period()
        self.compute.gpus.releases._retries.wait()


class SwitchedOnTest(_ServiceTestCase):
    def test_cards_stay_offered_until_their_turn(self) -> None:
        self.switch_on()
        self.assertEqual((2, 1), self.inventory())  # the first is announced
        self.assertEqual(["UNTESTED"] * 2, [self.state(ONE), self.state(OTHER)])
        for states in (["TESTING", "UNTESTED"], ["PASS", "UNTESTED"], ["PASS", "TESTING"]):
            self.assertEqual((2, 1), self.period())
            self.assertEqual(states, [self.state(ONE), self.state(OTHER)])
        self.assertEqual((2, 0), self.period())
        self.assertEqual(["PASS", "PASS"], [self.state(ONE), self.state(OTHER)])
        self.assertEqual((2, 0), self.period())
        self.assertNotIn("is not given to instances", self.log.output)  # no fault is reported

    def test_the_last_free_card_is_not_tested(self) -> None:
        self.switch_on(card_test_leave_free=2)
        for _ in range(3):
            self.assertEqual((2, 0), self.period())

    def test_a_test_without_a_verdict_takes_one_card(self) -> None:
        self.write("echo engine is down >&2; exit 2")
        self.switch_on(card_test_leave_free=0)
        for _ in range(6):
            self.assertEqual((2, 1), self.period())
        self.assertEqual(["UNKNOWN", "UNTESTED"], [self.state(ONE), self.state(OTHER)])
        self.assertIn("it ended with 2 and printed no verdict; see the test's", self.reason(ONE))

    def test_a_test_that_breaks_cards_takes_one(self) -> None:
        self.host.add_gpu(NEW, "10de", "2335", driver="vfio-pci")
        devices = self.host.root / "sys/bus/pci/devices"
        self.write(f"printf '\\377\\377' > {devices}/$1/config; exit 2")  # it no longer answers
        self.switch_on(card_test_leave_free=0)
        for _ in range(6):
            self.period()
        self.assertEqual(["UNKNOWN", *["UNTESTED"] * 2], [*map(self.state, (ONE, OTHER, NEW))])

    def test_tests_that_cannot_begin_take_one_card(self) -> None:
        def begin(address: str) -> None:
            raise child_process.Failed("cannot be started")

        self.useFixture(fixtures.MonkeyPatch("nova_gpu_cardlife.privsep.tests.begin", begin))
        self.switch_on(card_test_leave_free=0)
        for _ in range(4):
            self.period()
        self.assertEqual(["UNKNOWN", "UNTESTED"], [self.state(ONE), self.state(OTHER)])

    def test_a_test_that_cannot_be_killed_takes_one_card(self) -> None:
        left = self.host.root / "left"
        # As one that hangs in the driver: it goes on when the group is killed
        self.write(
            f"setsid sh -c 'echo $$ > {left}; exec sleep 900' &\n"
            f"while [ ! -s {left} ]; do sleep 0.01; done; exit 2"
        )
        self.addCleanup(lambda: os.kill(int(left.read_text()), signal.SIGKILL))
        self.switch_on(card_test_leave_free=0)
        for _ in range(3):
            self.period()
        now = time.time() + 3601
        self.useFixture(fixtures.MonkeyPatch("time.time", lambda: now))
        for _ in range(6):
            self.period()
        self.assertIn("an earlier test of it still runs", self.log.output)
        self.assertEqual(["UNKNOWN", "UNTESTED"], [self.state(ONE), self.state(OTHER)])
        self.assertIn("ended with the verdict UNKNOWN", self.reason(ONE))

    def test_off(self) -> None:
        self.compute.period()
        self.assertEqual([], self.compute.gpus._discovery.gates)
        self.assertFalse(tests_of_cards.folder().exists())

    def test_a_wrong_option_ends_the_service(self) -> None:
        for words in (
            ["/nonexistent"],
            [str(self.program)],
            ["dcgmi"],
            ["dcgmi", "5"],
            ["bus", "dcgmi"],
        ):
            error = self.assertRaises(exception.InvalidOption, self.switch_on, *words)
            self.assertIn("[gpu]card_test = ", str(error))

    def test_a_wrong_number_ends_the_service(self) -> None:
        path = self.host.root / "nova.conf"
        for number in ("card_test_timeout", "card_test_at_once", "card_test_leave_free"):
            path.write_text(f"[gpu]\ncard_test = bus\n{number} = -1\n")
            CONF([], "nova", "nova-compute", default_config_files=[str(path)])
            self.addCleanup(CONF, [], "nova", default_config_files=[])
            self.assertRaises(ValueError, self.compute.restart)

    def test_commands_before_the_service(self) -> None:
        self.compute.gpus.releases._retries.wait()
        self.compute.period()
        self.compute.config(group="gpu", card_test=["bus"])
        self.assertEqual("", self.reason(ONE))
        self.assertFalse(tests_of_cards.folder().exists())


class NewCardTest(_ServiceTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.switch_on(card_test_leave_free=3, card_test_timeout=60)

    def test_it_is_offered_once_it_passes(self) -> None:
        self.write(
            """echo '{"overall_severity": "PASS"}'; echo $1 $# $NOVA_GPU_ADDRESS >> """
            f"{self.host.root}/called"
        )
        self.add()
        self.assertEqual((3, 1), self.inventory())
        self.assertIn("it has not passed a test on this host; nova-compute", self.reason(NEW))
        self.assertEqual((3, 1), self.period())
        self.assertIn("it is being tested since 20", self.reason(NEW))
        self.assertEqual((3, 0), self.period())
        self.assertEqual(("PASS", ""), (self.state(NEW), self.reason(NEW)))
        called = (self.host.root / "called").read_text()
        self.assertEqual(f"{NEW} 1 {NEW}\n", called)

    def test_one_that_failed_waits_for_the_operator(self) -> None:
        self.write(FAIL)
        self.add()
        for _ in range(3):
            self.assertEqual((3, 1), self.period())
        self.assertIn("verdict CRITICAL: bad rows; repair it, then run", self.reason(NEW))
        self.assertIn(
            f"GPU {NEW} (H200 SXM 141GB) is not given to instances: its test", self.log.output
        )
        self.write(PASS)
        for _ in range(4):
            self.assertEqual((3, 1), self.period())
        self.assertEqual(0, retest.run(SimpleNamespace(address=NEW), []))
        for reserved in (1, 1, 0):
            self.assertEqual((3, reserved), self.period())

    def test_an_hour_after_a_test_without_a_verdict(self) -> None:
        self.write("echo garbage")
        self.add()
        for _ in range(5):
            self.assertEqual((3, 1), self.period())
        self.assertEqual("UNKNOWN", self.state(NEW))
        self.write(PASS)
        now = time.time() + 3601
        self.useFixture(fixtures.MonkeyPatch("time.time", lambda: now))
        for reserved in (1, 1, 0):
            self.assertEqual((3, reserved), self.period())

    def test_what_a_test_prints_in_the_log(self) -> None:
        self.write(r"printf '\033[2J'; head -c 1000000 /dev/zero | tr '\0' x; exit 1")
        self.add()
        for _ in range(2):
            self.period()
        line = next(line for line in self.log.output.splitlines() if "xxx" in line)
        self.assertNotIn("\033", line)
        self.assertLess(len(line), 10000)

    def test_a_test_that_fills_the_disk(self) -> None:
        name = "nova_gpu_cardlife.privsep.tests._LARGEST"
        self.useFixture(fixtures.MonkeyPatch(name, 1 << 20))
        self.write(f"{PASS}; exec cat /dev/zero")
        self.add()
        for _ in range(2):
            self.period()
        self.assertIn("it printed, or wrote to a file, more than 1 MiB", self.reason(NEW))

    def test_a_test_that_hangs_is_killed_with_its_children(self) -> None:
        self.compute.config(group="gpu", card_test_timeout=1)
        pids = self.host.root / "pids"
        self.write(f"sleep 1000 & echo $! > {pids}; {PASS}; wait")
        self.add()
        for _ in range(4):
            self.assertEqual((3, 1), self.period())
        self.assertIn("it was killed; it may take 1 s", self.reason(NEW))
        self.assertFalse(is_alive(int(pids.read_text())))

    def test_what_a_test_leaves_is_ended(self) -> None:
        pids = self.host.root / "pids"
        self.write(f"sleep 1000 & echo $! > {pids}; {PASS}")
        self.add()
        for reserved in (1, 0):
            self.assertEqual((3, reserved), self.period())
        self.assertFalse(is_alive(int(pids.read_text())))

    def test_a_service_that_ends_meanwhile(self) -> None:
        begun = self.host.root / "begun"
        self.write(f"touch {begun}; sleep 1000")
        self.add()
        self.period()
        self.compute.period()
        self.assertEqual("TESTING", self.state(NEW))
        while not begun.exists():  # it has read what it does
            time.sleep(0.01)
        tests = nova_gpu_cardlife.privsep.tests
        former = tests._tests.pop(NEW)  # the privileged process has ended, too
        self.write(PASS)
        self.compute.restart()
        for _ in range(3):
            self.assertEqual((3, 1), self.period())
        self.assertIn("an earlier test of it still runs", self.log.output)
        self.assertEqual("TESTING", self.state(NEW))
        self.kill(former.process.pid)
        former.process.wait()
        former.output.close()
        self.assertTrue(any(self.period() == (3, 0) for _ in range(4)))
        self.assertEqual("PASS", self.state(NEW))

    def test_an_operator_who_asks_during_a_test(self) -> None:
        self.add()
        self.period()
        self.assertEqual("TESTING", self.state(NEW))
        retest.run(SimpleNamespace(address=NEW), [])
        for reserved in (1, 1, 0):  # what began before says nothing
            self.assertEqual((3, reserved), self.period())

    def test_out_of_quarantine(self) -> None:
        self.add()
        for _ in range(3):
            self.period()
        self.assertEqual("PASS", self.state(NEW))
        gpu = next(g for g in self.host.gpus() if str(g.address) == NEW)
        self.compute.gpus.releases.quarantine(gpu, "it has a stain", "wipe it")
        self.assertEqual((3, 1), self.period())
        self.assertIsNone(self.state(NEW))
        quarantine.release(self.host.root / "state/gpu-quarantine", gpu.address)
        self.compute.period()
        self.compute.gpus.releases._retries.wait()
        self.assertIn("it has not passed a test", self.reason(NEW))
        self.assertTrue(any(self.period() == (3, 0) for _ in range(5)))
        self.assertEqual("PASS", self.state(NEW))

    def test_a_quarantine_that_cannot_be_read(self) -> None:
        """It puts no card into quarantine, so that the verdicts stay."""
        folder = self.host.root / "state/gpu-quarantine"
        folder.write_text("")
        self.assertEqual((2, 2), self.period())
        folder.unlink()
        self.assertEqual((2, 0), self.period())
        self.assertEqual(["UNTESTED"] * 2, [self.state(ONE), self.state(OTHER)])

    def test_a_folder_that_is_removed(self) -> None:
        """While the service runs: it sells nothing that failed."""
        self.write(FAIL)
        self.add()
        for _ in range(3):
            self.period()
        self.assertEqual("CRITICAL", self.state(NEW))
        shutil.rmtree(tests_of_cards.folder())
        self.assertEqual((3, 3), self.period())
        self.write(PASS)
        self.assertTrue(any(self.period() == (3, 0) for _ in range(9)))

    def test_a_record_that_cannot_be_read(self) -> None:
        path = tests_of_cards.folder() / f"{ONE}.json"
        path.write_text("[]")
        self.assertEqual((2, 1), self.period())
        self.assertIn("the record of its test cannot be read: ", self.reason(ONE))
        retest.run(SimpleNamespace(address=ONE), [])
        for reserved in (1, 1, 0):
            self.assertEqual((2, reserved), self.period())


class UnprivilegedTest(_ServiceTestCase):
    def test_records_that_a_user_cannot_read(self) -> None:
        if os.geteuid():
            self.skipTest("needs root, to become another user")
        self.switch_on()
        for folder in (self.host.root.parent, self.host.root):
            folder.chmod(0o755)
        (self.host.root / "state").chmod(0o700)
        self.addCleanup(os.seteuid, os.geteuid())
        os.seteuid(65534)
        self.assertIn("its quarantine entry cannot be read", self.reason(ONE))
        self.assertEqual(1, retest.run(SimpleNamespace(address=ONE), []))


class EmptyHostTest(_ServiceTestCase):
    def test_its_first_card_is_new(self) -> None:
        for address in (ONE, OTHER):
            (self.host.root / "sys/bus/pci/devices" / address).unlink()
        self.compute.config(group="gpu", card_test=["bus"])
        self.compute.restart()
        self.host.add_gpu(NEW, "10de", "2335", driver="vfio-pci")
        self.compute.restart()
        self.assertIn("it has not passed a test on this host", self.reason(NEW))


class InstanceTest(_ServiceTestCase):
    def instance(self, card: str) -> objects.Instance:
        return self.compute.instance({"gpus": "= 1"}, (self.provider, card))

    def test_a_claim_that_was_faster(self) -> None:
        self.switch_on()
        self.assertEqual((2, 1), self.inventory())  # ONE is announced
        instance = self.instance(ONE)
        self.period()
        self.assertEqual("UNTESTED", self.state(ONE))
        self.compute.spawn(instance)
        self.period()
        self.assertEqual("UNTESTED", self.state(ONE))
        self.compute.delete(instance)
        self.assertTrue(any(self.period() and self.state(ONE) == "PASS" for _ in range(6)))

    def test_no_instance_starts_with_a_card_that_is_being_tested(self) -> None:
        self.write("sleep 1000")
        self.switch_on()
        self.compute.period()
        self.assertEqual("TESTING", self.state(ONE))
        refused = (
            nova_exception.BuildAbortException,
            nova_exception.ComputeResourcesUnavailable,
        )
        self.assertRaises(refused, self.compute.spawn, self.instance(ONE))


class DividedCardTest(_ServiceTestCase):
    """A card of vGPUs, of which an instance has one"""

    def test_tested_when_no_instance_has_a_part(self) -> None:
        self.host.add_gpu(NEW, "10de", "1bb3", driver="nvidia")
        vgpu.add_types(self.host, NEW, vgpu.TESLA_P4)
        self.compute.config(group="gpu", vgpu_types=["nvidia-64"])
        self.switch_on(card_test_leave_free=0, card_test_at_once=3)
        provider = self.compute.provider("1bb3", "nvidia-64")

        def reserved() -> int:
            return int(self.compute.tree.data(provider).inventory["VGPU"]["reserved"])

        self.assertEqual(4, reserved())
        instance = self.compute.instance({"gpus": "= 1"}, (provider, f"{NEW}/nvidia-64/0"))
        for _ in range(3):
            self.period()
        self.assertEqual(["PASS", "PASS", "UNTESTED"], [*map(self.state, (ONE, OTHER, NEW))])
        del self.compute.instances[instance.uuid]
        self.assertTrue(any(self.period() and self.state(NEW) == "TESTING" for _ in range(4)))
        self.assertEqual(4, reserved())
        self.period()
        self.assertEqual(("PASS", 0), (self.state(NEW), reserved()))


class DcgmiTest(_ServiceTestCase):
    def test_cards_of_nvidias_driver(self) -> None:
        """Others are tested without it."""
        self.host.bind(ONE, "nvidia")
        path = self.host.root / "bin"
        path.mkdir()
        answer = diag(SOFTWARE, ("Hardware", "memory", [result("Fail", 1, "bad row")]))
        dcgmi = path / "dcgmi"
        dcgmi.write_text(
            f"#!/bin/sh\necho $* >> {path}/called\n[ $1 = diag ] && echo '{answer}' && exit 226\n"
            f"cat <<'X'\n{DISCOVERY.replace('3B', '03')}X\n"
        )
        dcgmi.chmod(0o755)
        for name, substitute in (
            ("nova_gpu.host.clean_command.PATH", f"{path}:/usr/bin:/bin"),
            ("nova_gpu.host.clean_command._distrust", lambda *_: None),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, substitute))
        self.switch_on("dcgmi", "2", card_test_leave_free=0, card_test_at_once=2)
        self.period()
        self.assertEqual((2, 1), self.period())
        self.assertIn("verdict CRITICAL: memory: bad row; repair", self.reason(ONE))
        self.assertEqual("PASS", self.state(OTHER))
        called = (path / "called").read_text()
        self.assertEqual("discovery -l\ndiag -r 2 -j -i 1\n", called)


class BusTest(_ServiceTestCase):
    def test_a_card_with_too_few_lanes(self) -> None:
        device = f"sys/bus/pci/devices/{NEW}"
        self.switch_on("bus", card_test_leave_free=3)
        self.add()
        for name, text in (
            ("current_link_width", "4"),
            ("max_link_width", "16"),
            ("current_link_speed", "2.5 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
        ):
            pci.write(self.host.root / device / name, text)
        self.period()
        self.assertEqual((3, 1), self.period())
        self.assertIn("CRITICAL: its link has 4 lanes of 16", self.reason(NEW))
        pci.write(self.host.root / device / "current_link_width", "16")
        retest.run(SimpleNamespace(address=NEW), [])
        for reserved in (1, 1, 0):
            self.assertEqual((3, reserved), self.period())
