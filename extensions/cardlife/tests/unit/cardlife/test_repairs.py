# SPDX-License-Identifier: Apache-2.0
"""A host whose cards are repaired: all of nova-compute's part over a generated tree"""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable
from types import SimpleNamespace

import fixtures

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Repair, Source, Unavailable
from nova_gpu.host.state import quarantine
from nova_gpu_cardlife import repairs_of_cards, tests_of_cards
from nova_gpu_cardlife.cmd import retest
from nova_gpu_cardlife.core.ladder import State
from nova_gpu_cardlife.host import records, repair_records
from tests.fixtures import pci
from tests.unit.cardlife.test_service import ONE, OTHER, PASS, _ServiceTestCase

FAIL = """echo '{"overall_severity": "CRITICAL", "summary": "bad rows"}'; exit 1"""
UNKNOWN = "exit 2"
RESET, BUS_RESET = ["reset"], ["reset", "bus-reset"]


class _RepairTestCase(_ServiceTestCase):
    """``called``: the resets; ``faults``: what a look finds at a card"""

    def setUp(self) -> None:
        super().setUp()
        self.called: list[str] = []
        self.faults: dict[str, Unavailable] = {}
        self.fails: Callable[[str], None] = lambda address: None
        for name in ("reset", "reset_bus"):
            self.patch(f"nova_gpu.privsep.cleaning.{name}", self._noted(name))
        self.patch("nova_gpu.virt.health.monitor.Watch.look", self._look)

    def patch(self, name: str, substitute: object) -> None:
        self.useFixture(fixtures.MonkeyPatch(name, substitute))

    def _noted(self, name: str) -> Callable[[str], None]:
        def reset(address: str) -> None:
            if self.is_on:
                self.called.append(f"{name} {address}")
                self.fails(name)

        return reset

    def _look(self, _: object, gpus: object) -> object:
        return {PciAddress.parse(a): (fault,) for a, fault in self.faults.items()}

    is_on = False

    def repair(self, *steps: str, **options: object) -> None:
        """Both cards have passed their tests, and are repaired from now on."""
        self.switch_on(card_test_leave_free=0, card_test_at_once=2)
        for _ in range(3):
            self.period()
        self.assertEqual(["PASS", "PASS"], [self.state(ONE), self.state(OTHER)])
        self.compute.config(group="gpu", card_repair=list(steps), **options)
        self.compute.restart()
        self.is_on = True

    def fault(self, step: Repair | None, source: Source = Source.NVML) -> None:
        self.faults[ONE] = Unavailable("it is hot", "cool it", source, asks=step)

    def period(self) -> tuple[int, int]:
        now = super().period()
        for call in self._repairs()._begun.values() if self.is_on else ():
            if call is not None:
                call.exception()  # it has ended
        self.compute.gpus.releases._retries.wait()
        return now

    def _repairs(self) -> repairs_of_cards.Repairs:
        return next(
            gate
            for gate in self.compute.gpus._discovery.gates
            if isinstance(gate, repairs_of_cards.Repairs)
        )

    def record(self, address: str = ONE) -> repair_records.Record | None:
        card = next(gpu for gpu in self.host.gpus() if str(gpu.address) == address)
        return repair_records.read(repairs_of_cards.folder(), card, {})

    def is_offered(self, address: str = ONE) -> bool:
        return not self.reason(address) and self.period() == (2, 0)

    def until(self, state: State, step: Repair, periods: int = 9) -> None:
        for _ in range(periods):
            record = self.record()
            if record and (record.state, record.step) == (state, step):
                return
            self.assertNotEqual((2, 0), self.period())
        self.fail(f"{self.record()} {self.log.output[-2000:]}")

    def until_offered(self) -> None:
        self.assertTrue(any(self.period() == (2, 0) for _ in range(9)), self.reason(ONE))


class StepsTest(_RepairTestCase):
    def test_a_reset_then_a_test(self) -> None:
        self.repair(*RESET)
        self.fault(Repair.RESET)
        self.assertEqual((2, 1), self.period())
        self.assertIn("it is hot; it needs a reset: it begins in", self.reason(ONE))
        self.assertEqual((2, 1), self.period())
        self.assertIn("it is hot; it needs a reset: it has begun", self.reason(ONE))
        self.faults.clear()
        self.until_offered()
        self.assertEqual([f"reset {ONE}"], self.called)
        record = self.record()
        assert record is not None
        self.assertEqual((State.OVER, 1), (record.state, len(record.tries)))
        for _ in range(3):
            self.assertEqual((2, 0), self.period())
        self.assertEqual(1, len(self.called))

    def test_each_step_as_far_as_the_option_allows(self) -> None:
        self.write(FAIL)
        for allowed, step, called, text in (
            (RESET, Repair.SERVICE, [], "it needs service: a person has to do that; repair"),
            (RESET, Repair.REBOOT, [], "nova-compute does not boot a host; move the instances"),
            (RESET, Repair.BUS_RESET, [], r"\[gpu\]card_repair does not have bus-reset; do that"),
            (["bus-reset"], Repair.RESET, [], r"\[gpu\]card_repair does not have reset; do that"),
            (RESET, Repair.RESET, ["reset"], r"bad rows; it needs a reset of its bus: \[gpu\]"),
            (BUS_RESET, Repair.DRAIN_AND_RESET, ["reset", "reset", "reset_bus", "reset"], "boot"),
            (BUS_RESET, Repair.BUS_RESET, ["reset_bus", "reset"], "it needs a boot of the host"),
        ):
            with self.subTest(step, allowed=allowed):
                self.write(PASS)
                self.is_on = False
                self.compute.config(group="gpu", card_repair=[])
                retest.run(SimpleNamespace(address=ONE), [])
                self.repair(*allowed)
                self.called.clear()
                self.write(FAIL)
                self.fault(step)
                self.period()
                self.faults.clear()
                for _ in range(14):
                    self.assertEqual((2, 1), self.period())
                self.assertEqual([f"{name} {ONE}" for name in called], self.called)
                self.assertRegex(self.reason(ONE) + str(self.record()), text)

    def test_a_fault_that_stays(self) -> None:
        self.repair(*RESET)
        self.fault(Repair.RESET)
        self.until(State.TESTING, Repair.RESET)
        for _ in range(3):
            self.assertEqual((2, 1), self.period())
        now = time.monotonic() + 1000
        self.patch("time.monotonic", lambda: now)
        self.until(State.WAITING, Repair.BUS_RESET)
        self.assertEqual(1, len(self.called))

    def test_a_reset_that_fails(self) -> None:
        def fails(name: str) -> None:
            if len(self.called) == 1:
                raise exception.NotClean(ONE, "it does not answer", "boot the host")

        self.fails = fails
        self.repair(*BUS_RESET)
        self.fault(Repair.RESET)
        self.period()
        self.faults.clear()
        self.until_offered()
        # Its quarantine and its repair have it cleaned.
        expected = [f"{n} {ONE}" for n in ("reset", "reset_bus", "reset", "reset")]
        self.assertEqual(expected, self.called)
        self.assertEqual({}, quarantine.load(self.host.root / "state/gpu-quarantine"))

    def test_a_card_that_a_program_has_open(self) -> None:
        def fails(name: str) -> None:
            if len(self.called) < 3:
                raise exception.NotCleanedYet(ONE, "pid 7 has it open", "end it")

        self.fails = fails
        self.repair(*BUS_RESET)
        self.fault(Repair.BUS_RESET)
        self.period()
        self.faults.clear()
        for _ in range(2):
            self.period()
        self.assertIn("pid 7 has it open", self.reason(ONE))
        self.until_offered()
        record = self.record()
        assert record is not None
        self.assertEqual((1, 4), (len(record.tries), len(self.called)))

    def test_unknown_is_no_pass(self) -> None:
        self.repair(*RESET)
        self.write(UNKNOWN)
        self.fault(Repair.RESET)
        self.period()
        self.faults.clear()
        for _ in range(9):
            self.assertEqual((2, 1), self.period())
        record = self.record()
        assert record is not None
        self.assertEqual((State.TESTING, "it is hot"), (record.state, record.fault))

    def test_what_asks_for_no_step(self) -> None:
        self.repair(*RESET)
        self.fault(None)
        self.assertEqual((2, 1), self.period())
        self.assertIsNone(self.record())
        self.faults.clear()
        self.until_offered()

    def test_too_many(self) -> None:
        self.repair(*RESET, card_repair_tries=2)
        for _ in range(3):
            self.fault(Repair.RESET)
            self.period()
            self.faults.clear()
            for _ in range(6):
                self.period()
        self.assertEqual(2, len(self.called))
        self.assertIn("it is to be replaced, after 2 repairs: it is hot; repair", self.reason(ONE))
        self.compute.restart()
        self.assertEqual((2, 1), self.period())
        self.assertEqual(0, retest.run(SimpleNamespace(address=ONE), []))
        self.until_offered()

    def test_a_boot(self) -> None:
        """It is the step of a card that waits for one, and ends what an Xid has said."""
        self.repair(*RESET)
        card = next(gpu for gpu in self.host.gpus() if str(gpu.address) == ONE)
        fault = Unavailable("its driver reported Xid 79", "see", Source.XID, asks=Repair.REBOOT)
        self.compute.gpus.releases.quarantine_fault(card, fault, None)
        self.period()
        self.until(State.WAITING, Repair.REBOOT)
        pci.write(self.host.roots.proc / "sys/kernel/random/boot_id", "another\n")
        self.write(UNKNOWN)
        self.compute.restart()
        for _ in range(5):
            self.assertEqual((2, 1), self.period())
        self.write(PASS)
        records.remove(tests_of_cards.folder(), PciAddress.parse(ONE))
        self.until_offered()
        record = self.record()
        assert record is not None
        self.assertEqual(1, len(record.tries))


class BesideTest(_RepairTestCase):
    def test_a_card_that_an_instance_has(self) -> None:
        self.repair(*RESET)
        instance = self.compute.instance({"gpus": "= 1"}, (self.provider, ONE))
        self.compute.spawn(instance)
        self.fault(Repair.RESET)
        self.period()
        self.faults.clear()
        for _ in range(3):
            self.period()
        self.assertEqual([], self.called)
        self.assertIn(f"instances have {ONE}, or", self.reason(ONE))
        self.assertIn("openstack gpu drain", self.reason(ONE))
        self.compute.delete(instance)
        self.until_offered()
        self.assertEqual([f"reset {ONE}"] * 2, self.called)  # by its end, and by its repair

    def test_a_neighbours_guest(self) -> None:
        """A bus reset waits for a card that is on the same board; a reset does not."""
        both = {PciAddress.parse(ONE), PciAddress.parse(OTHER)}
        self.repair(*BUS_RESET)
        joined = dict.fromkeys(both, both)
        self.patch("nova_gpu.virt.inventory.joined_cards.JoinedCards.joined", lambda _: joined)
        instance = self.compute.instance({"gpus": "= 1"}, (self.provider, OTHER))
        self.compute.spawn(instance)
        self.called.clear()
        for step in (Repair.BUS_RESET, Repair.DRAIN_AND_RESET):
            self.fault(step)
            for _ in range(4):
                self.period()
            self.assertEqual([], self.called)
            self.assertIn(f"instances have {OTHER}, or", self.reason(ONE))
            retest.run(SimpleNamespace(address=ONE), [])
        self.fault(Repair.RESET)
        self.until(State.TESTING, Repair.RESET)
        self.assertEqual([f"reset {ONE}"], self.called)


class QuarantineTest(_RepairTestCase):
    def test_the_operators_is_not_ended(self) -> None:
        self.repair(*RESET)
        card = next(gpu for gpu in self.host.gpus() if str(gpu.address) == ONE)
        self.compute.gpus.releases.quarantine(card, "it has a stain", "wipe it")
        self.fault(Repair.RESET)
        for _ in range(4):
            self.period()
        self.assertEqual([], self.called)
        self.assertIn("it is in quarantine", self.reason(ONE))
        self.assertIn("quarantine release", str(self.record()))

    def test_an_xid(self) -> None:
        self.repair(*RESET)
        card = next(gpu for gpu in self.host.gpus() if str(gpu.address) == ONE)
        fault = Unavailable("its driver reported Xid 48", "see", Source.XID, asks=Repair.RESET)
        self.compute.gpus.releases.quarantine_fault(card, fault, self.host.roots.boot_id())
        self.assertEqual((2, 1), self.period())
        self.until_offered()
        self.assertEqual([f"reset {ONE}"], self.called)


class BadStateTest(_RepairTestCase):
    def waiting(self) -> pathlib.Path:
        self.repair("bus-reset")
        self.fault(Repair.RESET)
        self.period()
        self.faults.clear()
        return repairs_of_cards.folder() / f"{ONE}.json"

    def test_records_that_cannot_be_read(self) -> None:
        path = self.waiting()
        for text in ("[]", "", "{}", path.read_text().replace("waiting", "well")):
            path.write_text(text)
            for _ in range(2):
                self.assertEqual((2, 1), self.period())
            self.assertIn("the record of its repair cannot be read: ", self.reason(ONE))
        retest.run(SimpleNamespace(address=ONE), [])
        self.until_offered()

    def test_a_full_disk(self) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        self.repair(*RESET)
        with fixtures.MonkeyPatch("nova_gpu_cardlife.host.repair_records.write", full):
            self.fault(Repair.RESET)
            self.period()
            self.faults.clear()
            for _ in range(3):
                self.assertEqual((2, 1), self.period())
            self.assertEqual([], self.called)
            self.assertIn("does not go on: [Errno 28]", self.log.output)
        self.until_offered()
        self.assertEqual([f"reset {ONE}"], self.called)

    def test_a_folder_that_cannot_be_read(self) -> None:
        folder = self.waiting().parent
        folder.rename(folder.with_name("away"))
        folder.symlink_to(folder)  # a loop, which is an error for every user
        for _ in range(2):
            self.assertEqual((2, 2), self.period())
        self.assertIn("the record of its repair cannot be read: ", self.log.output)

    def test_tests_that_begin_anew(self) -> None:
        """The cards that a host has when its tests are switched on have not passed one."""
        self.repair(*RESET)
        self.write(UNKNOWN)
        self.fault(Repair.RESET)
        self.until(State.TESTING, Repair.RESET)
        self.faults.clear()
        shutil.rmtree(tests_of_cards.folder())
        self.compute.restart()
        for _ in range(4):
            self.assertNotEqual("", self.reason(ONE))
            self.period()
        self.assertEqual("UNKNOWN", self.state(ONE))

    def test_another_card(self) -> None:
        """The repair is that of the card, as far as it can be told."""
        path = self.waiting()
        card = next(gpu for gpu in self.host.gpus() if str(gpu.address) == ONE)
        record = self.record()
        assert record is not None
        repair_records.write(path.parent, card, {"nvidia": "GPU-1"}, record)
        for own, is_its in (({}, True), ({"nvidia": "GPU-1"}, True), ({"nvidia": "GPU-2"}, False)):
            record = repair_records.read(path.parent, card, own)
            self.assertEqual(is_its, record is not None, own)
        other = dataclasses.replace(card.product, product_id="2330")
        other_card = dataclasses.replace(card, product=other)
        self.assertIsNone(repair_records.read(path.parent, other_card, {}))

    def test_killed_between_begin_and_end(self) -> None:
        """At each write to disk the service ends; the next one offers the card after a test."""
        for at in range(12):
            with self.subTest(at):
                self.is_on = False
                self.compute.config(group="gpu", card_repair=[])
                retest.run(SimpleNamespace(address=ONE), [])
                self.repair(*BUS_RESET)
                left = [at]

                def count(left: list[int] = left) -> None:
                    left[0] -= 1
                    if left[0] == -1:
                        raise _Killed

                self.fault(Repair.BUS_RESET)
                with _killing(count):
                    try:
                        for _ in range(8):
                            self.period()
                            self.faults.clear()
                            if self.state(ONE) != "PASS" or left[0] < 0:
                                continue
                    except _Killed:
                        pass
                self.is_on = False
                self.faults.clear()
                self.write(UNKNOWN)
                self.compute.restart()
                self.is_on = True
                record = self.record()
                if record is not None and record.state is not State.OVER:
                    for _ in range(6):
                        self.assertEqual((2, 1), self.period())
                    self.write(PASS)
                    records.remove(tests_of_cards.folder(), PciAddress.parse(ONE))
                    self.until_offered()
                self.write(PASS)
                self.until_offered()


class _Killed(BaseException):
    pass


class _killing(fixtures.CompoundFixture):
    def __init__(self, count: Callable[[], None]) -> None:
        def before(name: str) -> fixtures.MonkeyPatch:
            module, _, attribute = name.rpartition(".")
            function = getattr(__import__(module, fromlist=[attribute]), attribute)

            def counted(*args: object, **kwargs: object) -> object:
                count()
                return function(*args, **kwargs)

            return fixtures.MonkeyPatch(name, counted)

        super().__init__(
            [before(f"nova_gpu_cardlife.host.repair_records.{name}") for name in ("write",)]
            + [before("nova_gpu_cardlife.host.records.remove")]
            + [before("nova_gpu.host.state.proofs.revoke")]
        )


class OptionsTest(_RepairTestCase):
    def test_without_tests(self) -> None:
        self.compute.config(group="gpu", card_repair=["reset"])
        error = self.assertRaises(exception.InvalidOption, self.compute.restart)
        self.assertIn("if it passes a test, and none is set; set [gpu]card_test", str(error))

    def test_off(self) -> None:
        self.switch_on()
        self.assertEqual(1, len(self.compute.gpus._discovery.gates))
        self.fault(Repair.RESET)
        self.period()
        self.assertFalse(repairs_of_cards.folder().exists())
