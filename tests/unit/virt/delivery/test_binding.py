# SPDX-License-Identifier: Apache-2.0
"""Who is asked to bind what, and when. What binding does is tested with the functions that do it;
here stand-ins for them change a generated tree."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
from collections.abc import Callable, Mapping
from unittest import mock

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import discovery
from nova_gpu.host.state import quarantine
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt.delivery import binding, open_cards
from nova_gpu.virt.usage import ledger, records
from tests.fixtures import cards, hosts, pci
from tests.fixtures.verbs import VerbTestCase

CARD, AUDIO = "0000:3b:00.0", "0000:3b:00.1"
FIRST_CARD, OTHER_CARD = cards.card(CARD), cards.card("0000:5e:00.0")
IN_USE = exception.BindingFailed(CARD, "it is in use by X (pid 1)", "end that first")


class BindingsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        self.ledger = ledger.Ledger()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "gpu-unbound")
        self.bindings = self.new_service()
        self.calls: list[str] = []
        self.error: Exception | None = None
        for verb, driver in (("give_to_guests", "vfio-pci"), ("give_to_host", "nouveau")):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_gpu.privsep.vfio.{verb}", self._stand_in(verb, driver))
            )
        self.log = self.useFixture(fixtures.FakeLogger())

    def new_service(self) -> binding.Bindings:
        return binding.Bindings(self.host.roots, self.ledger, self.folder)

    def _stand_in(self, verb: str, driver: str) -> object:
        def bind(address: str) -> None:
            self.calls.append(f"{verb} {address}")
            if self.error:
                raise self.error
            if verb == "give_to_guests" or not self.prepared:
                for function in (CARD, AUDIO):
                    self.host.bind(function, driver)

        return bind

    def card(self, driver: str) -> GPU:
        self.host.add_gpu(CARD, "10de", "25b6", driver=driver, companions=[pci.AUDIO])
        self.prepared = driver == "vfio-pci"
        return dataclasses.replace(cards.card(CARD, driver), companions=cards.addresses(AUDIO))

    def test_late_bound(self) -> None:
        """And judged before anybody gets it"""
        card, judged = self.card("nouveau"), []
        bindings = self.bindings
        bindings.judge = lambda card: judged.append((card.address, {*bindings.unavailable()}))
        for _ in range(2):
            bindings.give_to_guests(card)
        self.assertEqual([f"give_to_guests {CARD}"], self.calls)
        self.assertEqual(frozenset(), bindings.unavailable().keys())
        for _ in range(2):
            bindings.cleaned([card])
        self.assertEqual([f"give_to_guests {CARD}", f"give_to_host {CARD}"], self.calls)
        self.assertEqual((card.address, frozenset({card.address})), judged[0])
        self.assertEqual(frozenset(), bindings.unavailable().keys())

    def test_begun_before_the_start(self) -> None:
        card = self.card("nouveau")
        for _ in range(2):
            self.bindings.begin(card, "one")
            self.bindings.finish(card, "one")
        self.assertEqual([f"give_to_guests {CARD}"], self.calls)
        self.bindings.cleaned([card])
        self.bindings.begin(card, "one")
        self.bindings._begun[card.address][1].result(10)
        self.bindings.cleaned([card])  # the host had it back meanwhile
        self.bindings.finish(card, "one")
        self.assertTrue(passthrough.is_with_vfio(card, self.host.roots))

    def test_half_of_the_daemon_is_left_to_nova(self) -> None:
        config = self.useFixture(config_fixture.Config(CONF)).config
        config(group="nova_sys_admin", thread_pool_size=4)
        gpus = [cards.card(f"0000:4{n}:00.0", "nouveau") for n in range(4)]
        two, at_once, most = threading.Barrier(2, timeout=200), [], []

        def bind(address: str) -> None:
            at_once.append(address)
            most.append(len(at_once))
            two.wait()
            at_once.remove(address)

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.vfio.give_to_guests", bind))
        for card in gpus:
            self.host.add_gpu(str(card.address), "10de", "25b6", driver="nouveau")
        bindings = self.new_service()
        for card in gpus:
            bindings.begin(card, "one")
        for card in gpus:
            bindings._begun[card.address][1].result(200)
        self.assertEqual(2, max(most))

    def test_begun_in_vain(self) -> None:
        """It is not tried a second time for the same start, and for another one it is."""
        card = self.card("nouveau")
        self.error = IN_USE
        self.bindings.begin(card, "one")
        self.assertRaises(exception.BindingFailed, self.bindings.finish, card, "one")
        self.assertEqual([f"give_to_guests {CARD}"], self.calls)
        self.bindings.begin(card, "one")
        self.assertTrue(self.bindings._begun[card.address][1].exception(10))
        self.error = None
        self.bindings.finish(card, "other")
        self.assertTrue(passthrough.is_with_vfio(card, self.host.roots))
        self.assertEqual([f"give_to_guests {CARD}"] * 3, self.calls)

    def test_prepared(self) -> None:
        """Nobody is woken for it to be given, and to be given back once in a service's life."""
        card = self.card("vfio-pci")
        for _ in range(2):
            self.bindings.give_to_guests(card)
            self.bindings.cleaned([card])
        self.assertEqual([f"give_to_host {CARD}"], self.calls)

    def test_taken(self) -> None:
        card = self.card("nouveau")
        self.bindings.give_to_guests(card)
        del self.calls[:]
        self.ledger.saw_domains({"one": frozenset({card.address})})
        self.bindings.cleaned([card])
        self.ledger.saw_domains({})
        with self.ledger.hold("one", frozenset({card.address}), dict):
            self.bindings.cleaned([card])
        self.assertEqual([], self.calls)

    def test_refused_to_guests(self) -> None:
        """Until it is given to one, or forgiven"""
        card = self.card("nouveau")
        ways: tuple[Callable[[], None], ...] = (
            lambda: self.bindings.give_to_guests(card),
            lambda: self.bindings.forgive(card.address),
        )
        for forgive in ways:
            self.host.bind(CARD, "nouveau")
            self.error = IN_USE
            self.assertRaises(exception.BindingFailed, self.bindings.give_to_guests, card)
            self.assertIn("in use by X", self.log.output)
            self.assertEqual({card.address}, self.bindings.unavailable().keys())
            self.assertEqual({card.address}, quarantine.unbound(self.folder, [card]).keys())
            self.error = None
            forgive()
            self.assertEqual(set(), self.bindings.unavailable().keys())
            self.assertEqual({}, quarantine.unbound(self.folder, [card]))

    def test_in_use_for_a_moment(self) -> None:
        """After a refused or ended start nothing is wrong; a period later it may be."""
        card = self.card("nouveau")
        self.bindings.give_to_guests(card)
        self.error = exception.CardInUse(CARD, "it is in use by X (pid 1)", "end that first")
        with self.assertLogs("nova_gpu.virt.delivery.binding", "INFO") as log:
            for expected in (["INFO"], ["INFO", "WARNING"], ["INFO", "WARNING"]):
                self.bindings.cleaned([card])
                self.assertEqual(expected, [record.levelname for record in log.records])
        self.assertIn("in use by X (pid 1)", log.output[0])
        self.assertIn("end that first", log.output[1])
        self.error = None
        self.bindings.cleaned([card])
        self.assertEqual("nouveau", (self.host.path(CARD) / "driver").resolve().name)

    def test_no_longer_offered(self) -> None:
        """What is written down of it tells; one that an instance here has stays."""
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.vfio.records", lambda: folder))
        card = self.card("nouveau")
        self.bindings.give_to_guests(card)
        (folder / f"{CARD}.json").touch()
        self.count(card)
        self.bindings.looked([])
        self.assertEqual([f"give_to_guests {CARD}"], self.calls)
        self.ledger.read_records(lambda guests: records.Records({}))
        self.bindings.looked([])
        self.assertEqual([f"give_to_guests {CARD}", f"give_to_host {CARD}"], self.calls)

    def count(self, card: GPU) -> None:
        counted = {"one": frozenset({("here", str(card.address))})}
        self.ledger.read_records(lambda guests: records.Records(counted))

    def test_a_start_waits_for_a_card_that_is_given_back(self) -> None:
        card = self.card("nouveau")
        self.bindings.give_to_guests(card)
        began, go_on = threading.Event(), threading.Event()

        def slow(address: str) -> None:
            began.set()
            go_on.wait(200)
            self.host.bind(CARD, "nouveau")

        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.vfio.give_to_host", slow))
        giving = threading.Thread(target=self.bindings.cleaned, args=([card],))
        giving.start()
        self.assertTrue(began.wait(200))

        def start() -> None:
            with self.ledger.hold("one", frozenset({card.address}), dict):
                self.bindings.give_to_guests(card)

        starting = threading.Thread(target=start)
        starting.start()
        starting.join(0.2)
        self.assertTrue(starting.is_alive())
        go_on.set()
        for thread in (giving, starting):
            thread.join(200)
        self.assertEqual([f"give_to_guests {CARD}"] * 2, self.calls)
        self.assertEqual("vfio-pci", (self.host.path(CARD) / "driver").resolve().name)

    def test_refused_for_a_time(self) -> None:
        """And a new service tries at once."""
        unbound, new = (quarantine.BindFailures(self.folder) for _ in range(2))
        for wait_s, reasons in ((quarantine._RETRY_AFTER_S, 1), (0.0, 0)):
            with mock.patch.object(quarantine, "_RETRY_AFTER_S", wait_s):
                unbound.add(FIRST_CARD, IN_USE)
            self.assertEqual(reasons, len(unbound.unavailable()))
            refusals = quarantine.unbound(self.folder, [FIRST_CARD, OTHER_CARD])
            self.assertLessEqual(refusals.keys(), {FIRST_CARD.address})
        unbound.prune()
        self.assertEqual([], list(self.folder.iterdir()))
        unbound.add(FIRST_CARD, IN_USE)
        new.prune()
        self.assertEqual({}, quarantine.unbound(self.folder, [FIRST_CARD]))


class OpenCardsTest(VerbTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host.add_gpu(CARD, "10de", "2335", companions=[pci.AUDIO])
        self.cards = open_cards.OpenCards(self.host.roots)

    def reasons(self) -> Mapping[PciAddress, str]:
        gpus = discovery.cards_at([PciAddress.parse(CARD)], self.host.roots)
        return self.cards.reasons(gpus)

    def test_what_a_process_of_the_host_has_open(self) -> None:
        device = self.host.path(CARD) / "drm/card0"
        device.mkdir(parents=True)
        (device / "dev").write_text("1:3\n")
        process = self.host.roots.proc / "812"
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_bytes(b"nvidia-persistenced\0")
        (process / "fd/7").symlink_to("/dev/null")
        (reason,) = self.reasons().values()
        self.assertEqual("it is in use by processes of the host; end that first", reason)
        self.reasons()
        message = f"GPU {CARD} is not offered while the host uses it: nvidia-persistenced (pid 812)"
        self.assertEqual(1, self.log.output.count(message))
        for address in (CARD, CARD.replace(".0", ".1")):
            self.host.bind(address, "vfio-pci")
        self.assertEqual({}, self.reasons())
        for address in (CARD, CARD.replace(".0", ".1")):
            self.host.bind(address, "nvidia")
        os.mkfifo(process / "maps")  # a process's memory that is locked
        self.config(group="gpu", bind_timeout=1)
        (reason,) = self.reasons().values()
        self.assertIn("what that has open cannot be read", reason)
        self.assertIn("all processes: the search did not answer within 1 s", self.log.output)

    def test_without_privsep_it_is_not_asked(self) -> None:
        broken = fixtures.MockPatch("nova_gpu.privsep.vfio.in_use", side_effect=TypeError("helper"))
        self.useFixture(broken)
        self.assertEqual({}, self.reasons())
        self.assertIn(
            "Cannot tell whether a process has a GPU open, so all count as free: helper",
            self.log.output,
        )
