# SPDX-License-Identifier: Apache-2.0
"""Hosts that write passports into one folder, over generated trees and with the real process"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import shutil
import time
from types import SimpleNamespace

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu import notifications
from nova_gpu.cmd.output import Format
from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Source, Unavailable
from nova_gpu.host.pci import identity
from nova_gpu.host.state import quarantine
from nova_gpu_cardlife import passports, switch
from nova_gpu_cardlife.cmd import passport as passport_command
from nova_gpu_cardlife.core import passport
from nova_gpu_cardlife.host import shared_folder
from tests.fixtures import hosts, pci
from tests.fixtures.compute import Compute

ONE, TWO = "0000:03:00.0", "0000:04:00.0"
FILE = "pcie-00-00-00-00-00-00-12-34@{}.json"
BUS = Unavailable("it has reported 8 fatal PCIe errors", "", Source.BUS)
XID = Unavailable(
    "it is in quarantine since 1: its driver reported Xid 79 (GPU has fallen, evil)",
    "",
    Source.QUARANTINE,
)
DIRTY = Unavailable("it was not cleaned", "", Source.PROOF)


def wait(folder: shared_folder.SharedFolder) -> None:
    if folder._process:
        os.waitid(os.P_PID, folder._process.pid, os.WEXITED | os.WNOWAIT)


class Site:
    """A host with its disk; ``boot`` starts its service."""

    def __init__(self, test: PassportsTestCase, name: str) -> None:
        self._test, self.name = test, name
        self.tree = hosts.Host(pathlib.Path(test.useFixture(fixtures.TempDir()).path))
        self.state = self.tree.root / "state"
        self.state.mkdir()
        self.boot()

    def add(self, address: str = ONE, number: int = 0x1234) -> None:
        self.tree.add_gpu(address, "10de", "2335", driver="vfio-pci")
        if number:
            pci.write_serial_number(self.tree.path(address), number)

    def boot(self) -> None:
        self.turn()
        self.service = passports.of_host(
            self.tree.roots,
            lambda cards: {c.address: identity.read(c, self.tree.roots) for c in cards},
        )

    def turn(self) -> None:
        self._test.config(host=self.name, state_path=str(self.state))

    def period(self, *reasons: Unavailable, address: str = ONE) -> str:
        """Why the card is kept back, after a look and the end of what that began"""
        self.turn()
        reasons_by_card = self.service.kept_back(self.tree.gpus())
        card = PciAddress.parse(address)
        self.service.saw({card: (*reasons, *reasons_by_card.get(card, ()))})
        wait(self.service._shared)
        return "; ".join(map(str, reasons_by_card.get(card, ())))

    def periods(self) -> str:
        """As many as a record takes to the folder and back"""
        return [self.period() for _ in range(4)][-1]

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.period(BUS)
            self.period()


class PassportsTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "shared")
        self.folder.mkdir()
        self.config(group="gpu", passport_folder=str(self.folder))
        self.useFixture(fixtures.MonkeyPatch("nova_gpu_cardlife.passports._RETRY_S", 0.0))
        self.sent: list[notifications.Event] = []
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.notifications.emit", self.sent.append))

    def kinds(self, *names: str) -> list[str]:
        """The events of the only card in the files of the folder"""
        texts = [(self.folder / FILE.format(name)).read_text() for name in names]
        (card,) = passport.together([passport.parse(json.loads(text)) for text in texts])
        return [f"{event.host} {event.kind} {event.text}".strip() for event in card.events]


class FolderTest(PassportsTestCase):
    def test_a_card_takes_its_history_along(self) -> None:
        one, other = Site(self, "one"), Site(self, "other")
        one.add()
        one.periods()
        one.period(XID)
        one.period(XID)
        one.tree.remove(ONE)
        one.periods()
        other.add(TWO)
        other.periods()
        self.assertEqual(
            ["one place", "one quarantine Xid 79", "one gone", "other place"],
            self.kinds("one", "other"),
        )
        self.assertEqual(
            [FILE.format("one"), FILE.format("other")], sorted(os.listdir(self.folder))
        )
        reasons = [(event.type, event.host, event.reason) for event in self.sent]
        known = "pcie 00-00-00-00-00-00-12-34"
        self.assertEqual(
            [
                ("gpu.passport", "one", f"{known}: place"),
                ("gpu.passport", "one", f"{known}: quarantine Xid 79"),
                ("gpu.passport", "one", f"{known}: gone"),
                ("gpu.passport", "other", f"{known}: place"),
            ],
            reasons,
        )

    def test_a_host_that_does_not_show_its_cards(self) -> None:
        site = Site(self, "one")
        site.add()
        site.periods()
        with fixtures.MonkeyPatch("nova_gpu.host.state.quarantine.see", lambda *_: {}):
            site.period()
        site.periods()
        self.assertEqual(["one place"], self.kinds("one"))

    def test_a_disk_that_cannot_be_read(self) -> None:
        site = Site(self, "one")
        site.add()
        (site.state / "gpu-passports").write_text("")
        self.assertEqual("", site.period())
        self.config(group="gpu", passport_most_returns=1)
        self.assertIn("its passport cannot be read: [Errno", site.period())
        (site.state / "gpu-passports").unlink()
        self.assertEqual("", site.periods())
        self.assertEqual(["one place"], self.kinds("one"))

    def test_a_file_of_the_disk_that_is_garbage(self) -> None:
        site = Site(self, "one")
        site.add()
        site.period(BUS)
        site.periods()
        (site.state / "gpu-passports/own" / FILE.format("one")).write_text("{")
        site.boot()
        site.periods()
        expected = ["one place", f"one bus {BUS.reason}", "one back", "one place"]
        self.assertEqual(expected, self.kinds("one"))

    def test_nothing_is_written_without_news(self) -> None:
        site = Site(self, "one")
        site.add()
        site.periods()
        before = (self.folder / FILE.format("one")).stat()
        begun = []
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_gpu_cardlife.host.shared_folder.SharedFolder.begin",
                lambda *arguments: begun.append(arguments),
            )
        )
        site.periods()
        self.assertEqual(
            (before.st_ino, []), ((self.folder / FILE.format("one")).stat().st_ino, begun)
        )

    def test_a_host_that_was_installed_again(self) -> None:
        site = Site(self, "one")
        site.add()
        site.periods()
        site.fail()
        site.periods()
        shutil.rmtree(site.state)
        site.state.mkdir()
        site.boot()
        site.periods()
        expected = ["one place", f"one bus {BUS.reason}", "one back", "one place"]
        self.assertEqual(expected, self.kinds("one"))

    def test_a_restart_repeats_nothing(self) -> None:
        site = Site(self, "one")
        site.add()
        site.period(BUS)
        site.boot()
        site.period(BUS)
        site.boot()
        for _ in range(4):
            site.period(BUS)
        self.assertEqual(["one place", f"one bus {BUS.reason}"], self.kinds("one"))

    def test_a_folder_that_is_not_there(self) -> None:
        site = Site(self, "one")
        site.add()
        self.folder.rmdir()
        site.fail()
        self.assertEqual("", site.periods())
        text = f"{self.folder} ([gpu]passport_folder): No such file or directory. nova-compute goes"
        self.assertEqual(1, self.log.output.count(text))
        self.folder.mkdir()
        site.periods()
        self.assertEqual(["place", "bus", "back"], [k.split()[1] for k in self.kinds("one")])
        self.assertIn("passports answers again", self.log.output)

    def test_a_folder_that_hangs(self) -> None:
        site = Site(self, "one")
        site.add()
        with fixtures.MonkeyPatch(
            "nova_gpu_cardlife.host.shared_folder._SCRIPT", "import time; time.sleep(900)"
        ):
            began = time.monotonic()
            self.look(site, BUS)
            self.look(site)
            self.assertLess(time.monotonic() - began, 5)
        hanging = site.service._shared._process
        with (
            fixtures.MonkeyPatch("nova_gpu_cardlife.host.shared_folder.DEADLINE_S", 0.0),
            fixtures.MonkeyPatch("os.killpg", lambda *_: None),  # it hangs in the kernel
        ):
            for _ in range(3):
                self.look(site)
        self.assertIs(hanging, site.service._shared._process)
        self.assertEqual(1, self.log.output.count(f"{self.folder} ([gpu]passport_folder): it did"))
        hanging.kill()
        wait(site.service._shared)
        site.periods()
        self.assertEqual(["place", "bus", "back"], [k.split()[1] for k in self.kinds("one")])

    def look(self, site: Site, *reasons: Unavailable) -> None:
        """A period that does not wait for the process"""
        site.service.kept_back(site.tree.gpus())
        site.service.saw({PciAddress.parse(ONE): reasons})

    def test_what_others_may_put_into_the_folder(self) -> None:
        site = Site(self, "one")
        for name, content in (
            (FILE.format("two"), "garbage"),
            (FILE.format("three"), "x" * (2 << 20)),
            (FILE.format("four"), json.dumps({"host": "five"})),
            (FILE.format("one"), "{"),
        ):
            (self.folder / name).write_text(content)
        os.symlink("/etc/passwd", self.folder / FILE.format("six"))
        os.mkfifo(self.folder / FILE.format("seven"))
        (self.folder / FILE.format("eight")).mkdir()
        site.add()
        site.periods()
        self.assertEqual(["one place"], self.kinds("one"))
        site.service._next_at = 0.0  # the next hour
        site.periods()
        for name in ("two", "three", "four", "six", "seven", "eight"):
            self.assertEqual(1, self.log.output.count(FILE.format(name)), name)
        self.assertNotIn("answers again", self.log.output)

    def test_two_periods_at_once_of_two_hosts(self) -> None:
        sites = [Site(self, name) for name in ("one", "other")]
        for site in sites:
            site.add()
        for _ in range(3):
            for site in sites:
                site.period(BUS)
            for site in sites:
                site.period()
        for site in sites:
            site.periods()
        (card,) = passport.together(
            [passport.parse(json.loads(path.read_text())) for path in self.folder.iterdir()]
        )
        self.assertEqual(14, len(card.events))
        self.assertIn("it is said to be at several places", card.remarks[0])

    def test_options_that_end_the_service(self) -> None:
        site = Site(self, "one")
        self.config(group="gpu", passport_folder="shared")
        self.assertIn("absolute", str(self.assertRaises(ValueError, site.boot)))
        self.config(group="gpu", passport_folder="", passport_most_returns=2)
        refused = self.assertRaises(ValueError, switch.passports_of_host, site.tree.roots, dict)
        self.assertIn("passport_folder = (not set)", str(refused))


class IdentityTest(PassportsTestCase):
    def names(self, site: Site) -> list[str]:
        site.periods()
        return sorted(name.partition("@")[0] for name in os.listdir(self.folder))

    def test_cards_without_a_number(self) -> None:
        site = Site(self, "one")
        for address in (ONE, TWO):
            site.add(address, 0)
        self.assertEqual([f"place-{a}-10de:2335" for a in (ONE, TWO)], self.names(site))

    def test_a_number_that_two_cards_of_the_host_have(self) -> None:
        site = Site(self, "one")
        for address in (ONE, TWO):
            site.add(address)
        self.assertEqual([f"place-{a}-10de:2335" for a in (ONE, TWO)], self.names(site))

    def test_another_slot(self) -> None:
        site = Site(self, "one")
        site.add()
        site.periods()
        site.tree.remove(ONE)
        site.add(TWO)
        self.assertEqual([FILE.partition("@")[0]], self.names(site))
        self.assertEqual(["one place", "one place"], self.kinds("one"))

    def test_a_number_that_cannot_be_read_for_a_while(self) -> None:
        site = Site(self, "one")
        site.add()
        site.periods()
        site.service._identities = lambda cards: {c.address: {} for c in cards}
        self.assertEqual([FILE.partition("@")[0]], self.names(site))
        self.assertEqual(["one place"], self.kinds("one"))

    def test_another_card_in_the_slot(self) -> None:
        site = Site(self, "one")
        site.add()
        site.periods()
        pci.write_serial_number(site.tree.path(ONE), 0x9999)
        self.assertEqual(2, len(self.names(site)))
        self.assertEqual(["one place", "one gone"], self.kinds("one"))


class ReturnsTest(PassportsTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config(group="gpu", passport_most_returns=2)

    def test_the_third_time_it_stays_out(self) -> None:
        site = Site(self, "one")
        site.add()
        site.fail(2)
        self.assertEqual("", site.periods())
        site.fail()
        text = site.period()
        self.assertIn("it came back from faults 3 times in 30 days", text)
        self.assertIn(f"run nova-gpu passport {ONE} --accept", text)
        self.assertEqual(text, site.period())  # its own reason is no fault
        command = passports.of_host(site.tree.roots, None)
        (reason,) = command.kept_back(())[PciAddress.parse(ONE)]
        self.assertEqual(text, str(reason))
        self.assertEqual(["place", *["bus", "back"] * 3], [k.split()[1] for k in self.kinds("one")])
        month = time.time() + 31 * 86400
        with fixtures.MonkeyPatch("time.time", lambda: month):
            self.assertEqual("", site.period())

    def test_on_another_host_before_it_is_offered(self) -> None:
        one, other = Site(self, "one"), Site(self, "other")
        one.add()
        one.fail(3)
        one.tree.remove(ONE)
        one.periods()
        other.period()
        other.add()
        self.assertIn("its history is being read in", other.period())
        self.assertIn("3 times in 30 days", other.period())

    def test_a_new_card_waits_for_the_folder_and_not_for_ever(self) -> None:
        site = Site(self, "one")
        site.period()
        site.add()
        self.folder.rmdir()
        site.turn()
        site.service.kept_back(site.tree.gpus())
        self.assertIn("its history is being read in", str(site.service._judge()))
        site.period()
        self.assertEqual("", site.period())

    def test_a_new_card_waits_for_what_is_asked_about_it(self) -> None:
        one, other = Site(self, "one"), Site(self, "other")
        one.add()
        one.fail(3)
        one.tree.remove(ONE)
        one.periods()
        other.turn()
        empty = """import time; time.sleep(1); print('{"read":{},"written":[],"errors":{}}')"""
        with fixtures.MonkeyPatch("nova_gpu_cardlife.host.shared_folder._SCRIPT", empty):
            other.service.kept_back([])
            other.service.saw({})
        other.add()
        for _ in range(2):
            self.assertIn("its history is being read in", other.period())
        self.assertIn("3 times in 30 days", other.period())

    def test_a_new_card_does_not_wait_for_what_cannot_answer(self) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        for name, substitute in (
            ("nova_gpu_cardlife.host.shared_folder.SharedFolder.is_busy", True),
            ("nova_gpu_cardlife.host.shared_folder.SharedFolder.begin", full),
        ):
            with self.subTest(name):
                site = Site(self, "one")
                self.folder.rename(self.folder.with_name("away"))
                site.periods()
                self.folder.with_name("away").rename(self.folder)
                site.add()
                with fixtures.MonkeyPatch(name, substitute):  # hangs in the kernel; a full disk
                    self.assertIn("its history is being read in", site.period())
                    self.assertEqual("", site.period())

    def test_an_operator_accepts_it(self) -> None:
        site = Site(self, "one")
        site.add()
        site.fail(3)
        self.assertNotEqual("", site.period())
        self.assertEqual(0, self.run_command(accept="a new heat sink"))
        site.period()
        self.assertEqual("", site.period())
        self.assertEqual("one accepted a new heat sink", self.kinds("one")[-1])
        self.assertEqual([], os.listdir(site.state / "gpu-passports/notes"))

    def run_command(self, note: str = "", accept: str = "", form: str = Format.TABLE) -> int:
        what = SimpleNamespace(address=ONE, note=note, accept=accept, format=form)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = passport_command.run(what, [])
        self.output = output.getvalue()
        return status

    def test_the_command(self) -> None:
        site = Site(self, "one")
        self.assertEqual(1, self.run_command())
        site.add()
        site.fail()
        self.assertEqual(0, self.run_command(note="RMA \x1b 4711"))
        site.period()
        self.assertEqual(0, self.run_command())
        self.assertIn(f"one  {ONE}  bus  {BUS.reason}\n", self.output)
        self.assertIn("note  RMA \N{REPLACEMENT CHARACTER} 4711\n", self.output)
        self.assertEqual(0, self.run_command(form=Format.JSON))
        (record,) = map(passport.parse, json.loads(self.output))
        self.assertEqual("one", record.host)
        self.config(group="gpu", passport_folder="")
        self.assertEqual(1, self.run_command())


class FaultsTest(base.BaseTestCase):
    def test_no_word_of_a_tenant(self) -> None:
        evil = "evil its driver reported Xid 13"
        rows = (
            (XID, {"quarantine": "Xid 79"}),
            (Unavailable(evil, "", Source.QUARANTINE), {"quarantine": "Xid 13"}),
            (Unavailable("process evil has it", "", Source.QUARANTINE), {"quarantine": ""}),
            (Unavailable("verdict CRITICAL: evil", "", Source.TEST), {"test failed": ""}),
            (BUS, {"bus": BUS.reason}),
            (Unavailable("rows", "", Source.NVML), {"nvml": "rows"}),
            (DIRTY, {}),
            (Unavailable("process evil has it open", "", Source.IN_USE), {}),
            (Unavailable("evil", "", Source.STARTS), {}),
            (Unavailable("evil", "", Source.HOST), {}),
            (Unavailable("evil", "", Source.GATE), {}),
        )
        for reason, expected in rows:
            self.assertEqual(expected, passports.faults([reason]), reason)


class ServiceTest(base.BaseTestCase):
    """All of nova-compute's part"""

    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        self.host.add_gpu(ONE, "10de", "2335", driver="vfio-pci")
        pci.write_serial_number(self.host.path(ONE), 0x1234)
        self.compute = self.useFixture(Compute(self.host))

    def test_off(self) -> None:
        self.compute.period()
        self.assertEqual([], self.compute.gpus._discovery.gates)
        self.assertFalse((self.host.root / "state/gpu-passports").exists())

    def test_on(self) -> None:
        shared = self.host.root / "shared"
        shared.mkdir()
        self.compute.gpus.releases._retries.wait()
        self.compute.config(group="gpu", passport_folder=str(shared), card_test=["bus"])
        self.compute.config(group="gpu", card_test_leave_free=0)
        self.compute.restart()
        for number in range(5):
            self.compute.period()
            (service,) = [
                gate
                for gate in self.compute.gpus._discovery.gates
                if isinstance(gate, passports.Passports)
            ]
            wait(service._shared)
            if number == 3:
                card: GPU = self.host.gpus()[0]
                entry = quarantine.entry(card, "its driver reported Xid 79 (off)", "")
                quarantine.put(self.compute.gpus._discovery.quarantine, entry)
        (path,) = (self.host.root / "state/gpu-passports/own").iterdir()
        events = passport.parse(json.loads(path.read_text())).events
        self.assertEqual(["place", "clean", "test", "quarantine"], [event.kind for event in events])
        self.assertIn("PASS at 20", events[2].text)
        self.assertEqual("Xid 79", events[3].text)
        self.assertEqual([FILE.format(CONF.host)], os.listdir(shared))
