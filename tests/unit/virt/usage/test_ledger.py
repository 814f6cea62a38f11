# SPDX-License-Identifier: Apache-2.0
"""Who has a device, by what domains, the database, starts and claims say."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import unittest
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from nova import objects

from nova_gpu.core import exception
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.virt.inventory import pool
from nova_gpu.virt.usage import domains, ledger, reader
from nova_gpu.virt.usage.ledger import Assignment, Claim, DevicesByUuid, Ledger, Snapshot, State
from nova_gpu.virt.usage.records import Records
from tests.fixtures import cards
from tests.fixtures.histories import Domain

A, B, C, D, E, F = cards.addresses(*(f"0000:0{number}:00.0" for number in range(1, 7)))
KEY = GroupKey("10de", "1091", DeliveryMode.LXC)
Counted = Mapping[str, frozenset[tuple[str, str]]]


def has(*devices: PciAddress, provider: str = "group") -> frozenset[tuple[str, str]]:
    return frozenset((provider, str(device)) for device in devices)


class LedgerTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.ledger = Ledger(lambda: self.now)
        self.assigned: set[objects.Resource] = set()

    def hold(
        self,
        uuid: str,
        *devices: PciAddress,
        look: Callable[[], DevicesByUuid] = dict,
        kept_devices: Any = (),
    ) -> contextlib.AbstractContextManager[None]:
        return self.ledger.hold(uuid, frozenset(devices), look, frozenset(kept_devices))

    def see(self, **named: Collection[PciAddress]) -> None:
        self.ledger.saw_domains({uuid: frozenset(devices) for uuid, devices in named.items()})

    def claim(self, *devices: PciAddress, back: Collection[PciAddress] = ()) -> None:
        self.ledger.claim(set(devices), back, self.assigned, 60)

    def start(self, uuid: str, device: PciAddress) -> None:
        with self.hold(uuid, device):
            self.see(**{uuid: {device}})

    def count(
        self,
        counted: Counted | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        **kwargs: Any,
    ) -> None:
        """The database is read; *meanwhile* is what happens before it has answered."""

        def read(guests: Collection[str]) -> Records:
            meanwhile()
            return Records(counted or {}, **kwargs)

        self.now += 1
        self.ledger.read_records(read)

    def assertTaken(self, *devices: PciAddress) -> None:
        self.assertEqual(set(devices), self.ledger.now.taken())

    def assertStarted(self, *devices: PciAddress) -> None:
        self.assertEqual(set(devices), self.ledger.now.started())

    def assertStrangers(self, **strangers: PciAddress) -> None:
        owners = {device: uuid for uuid, device in strangers.items()}
        self.assertEqual(owners, self.ledger.now.strangers())

    def assertRefused(self, text: str, held: contextlib.AbstractContextManager[None]) -> None:
        with self.assertRaisesRegex(exception.DeviceUnavailable, text), held:
            self.fail("held twice")


class LedgerTest(LedgerTestCase):
    def test_used_until_it_is_cleaned(self) -> None:
        """Named by a domain or given to a start; that a start held it alone is nothing."""
        self.see(one={A})
        with self.hold("two", B, C):
            self.ledger.was_used([B])
        self.see()
        self.assertEqual({A, B}, self.ledger.now.used)
        with self.ledger.clean(A):
            self.assertTaken(A)
            self.ledger.cleaned(A)
        self.assertEqual({B}, self.ledger.now.used)

    def test_used_before_this_service(self) -> None:
        """What the database counts first may be a guest's of before, what it counts later not."""
        self.count({"one": has(A)})
        self.count({"one": has(A), "two": has(B)})
        self.assertEqual({A}, self.ledger.now.used)
        self.see(two={B})
        self.ledger.was_used([C])
        self.assertEqual({C}, self.ledger.now.left())
        self.see()
        self.count()
        self.assertEqual({A, B, C}, self.ledger.now.left())

    def test_what_was_read_of_a_card_is_void_when_it_is_clean(self) -> None:
        self.count({"one": has(A, B)})
        with self.hold("one", A, B):
            pass
        self.ledger.cleaned(A)
        self.assertStarted(B)
        self.assertEqual({B}, self.ledger.now.counted())

    def test_kept_while_it_is_rebuilt(self) -> None:
        here: Counted = {"one": frozenset(), "two": frozenset()}
        for end in ("started", "gone", "let go"):
            with self.subTest(end=end):
                self.ledger.keep("one", frozenset({A}))
                self.count(here)
                self.assertTaken(A)
                kept_devices = self.ledger.now.kept_by("one")
                self.assertEqual({A}, kept_devices)
                if end == "started":
                    with self.hold("one", kept_devices=kept_devices):
                        self.assertTaken(A)
                elif end == "gone":
                    self.count({"two": frozenset()})
                else:
                    self.ledger.end_move("one")
                    self.ledger.end_move("one")
                self.assertTaken()

    def test_kept_from_within_a_hold_to_the_end_of_the_next(self) -> None:
        with self.hold("one", A):
            self.ledger.keep("one", frozenset({A}))
        self.assertTaken(A)
        self.assertEqual({A}, self.ledger.now.had_by("one"))
        with self.hold("one", kept_devices={A}):
            pass
        self.assertTaken()

    def test_while_the_database_is_read(self) -> None:
        """Before it was asked nobody had claimed or kept them."""
        self.count({}, lambda: self.ledger.keep("one", frozenset({A})))
        self.assertTaken(A)
        self.count({}, lambda: self.claim(B))
        self.assertTaken(B)
        self.count()
        self.assertTaken()

    def test_counted_and_recorded(self) -> None:
        """What another host's provider calls B may be an instance's here for all anybody knows."""
        self.count({"one": has(A), "two": has(B, provider="elsewhere")})
        self.assertRaises(OSError, self.count, {}, mock.Mock(side_effect=OSError))
        self.assertEqual({A, B}, self.ledger.now.counted())
        self.assertEqual({(KEY, A)}, self.ledger.now.recorded({"group": KEY}))

    def test_strangers(self) -> None:
        self.see(one={A}, two={B})
        with self.hold("two", B):
            pass
        self.assertStrangers()  # before the database was read
        self.assertEqual({A: "one"}, self.ledger.now.unjudged())
        self.count()
        self.assertStrangers(one=A, two=B)
        self.assertEqual({}, self.ledger.now.unjudged())
        self.see(one={A, C}, two={B})
        for returning, strangers in ((), {"one": C, "two": B}), (("two",), {"one": C}):
            self.count({"one": has(A)}, returning=frozenset(returning))
            self.assertStrangers(**strangers)

    def test_what_was_just_started_is_no_stranger(self) -> None:
        self.count()
        self.start("one", A)
        self.assertStrangers()
        self.assertStarted(A)
        self.count({"one": has(A)})
        self.assertStarted()
        self.assertStrangers()
        for _ in range(2):  # the second time it was started before as well
            self.count({}, lambda: self.start("one", A))
            self.assertStarted(A)
            self.assertStrangers()

    def test_what_is_being_started_stays(self) -> None:
        with self.hold("one", A):
            self.count()
            self.assertStarted(A)
        self.count()
        self.assertStarted()

    def test_what_is_saved_when_the_task_ends_stays_until_then(self) -> None:
        """An instance that is unshelved; what it had before is still in the database."""
        self.start("one", A)
        for counted, started in ((has(B), [A]), (frozenset[tuple[str, str]](), [A]), (has(A), [])):
            self.count({"one": counted}, busy=frozenset({"one"}))
            self.assertStarted(*started)
            self.assertStrangers()

    def test_what_was_started_and_is_counted_nowhere_is_a_strangers(self) -> None:
        """It was deleted while the service was away, or is on another host, or has no such GPU."""
        for counted in ({}, {"one": frozenset[tuple[str, str]]()}):
            with self.subTest(counted=counted):
                self.start("one", A)
                self.count(counted)
                self.assertStarted()
                self.assertStrangers(one=A)


class ReachedTest(LedgerTestCase):
    """What a container that runs can open, beside what is its own"""

    def test_other_cards(self) -> None:
        """Nobody else's, not kept for its next start, and cleaned when it is gone"""
        reached = {"one": frozenset({B}), "two": frozenset[PciAddress]()}
        self.ledger.saw_domains({"one": frozenset({A, B}), "two": frozenset({C})}, reached)
        self.assertTaken(A, B, C)
        self.assertEqual({"one": {B}}, self.ledger.now.reached)
        self.assertEqual({A}, self.ledger.now.kept_by("one"))
        self.assertEqual({A, B}, self.ledger.now.had_by("one"))
        self.see(two={C})
        self.assertEqual({A, B}, self.ledger.now.left())

    def test_between_two_domains(self) -> None:
        """A start that waits for libvirt's word, or has it; a rebuild; a resize that is reverted"""

        def look() -> DevicesByUuid:
            self.assertTrue(self.ledger.now.is_between("two"))
            return {}

        with self.hold("two", C, look=look):
            self.assertTrue(self.ledger.now.is_between("two"))
        self.assertFalse(self.ledger.now.is_between("two"))
        self.ledger.keep("one", [A])
        self.assertTrue(self.ledger.now.is_between("one"))
        self.ledger.end_move("one")
        self.assertFalse(self.ledger.now.is_between("one"))
        self.count(returning=frozenset({"one"}))
        self.assertTrue(self.ledger.now.is_between("one"))


def one(device: object) -> Assignment:
    return Assignment("one", frozenset({device}))


class StateTest(unittest.TestCase):
    def test_a_device_may_be_in_several(self) -> None:
        usage = Snapshot(
            claims={B: Claim(0.0, 60.0, set())},
            starting=(one(D),),
            domains={"one": frozenset({D, E})},
            moving={"one": one(C)},
            used=frozenset({A, C, D, E, F}),
            cleaning=frozenset({F}),
        )
        expected = {
            A: State.DIRTY,
            B: State.CLAIMED,
            C: State.MOVING,
            D: State.STARTING,
            E: State.IN_USE,
            F: State.CLEANING,
        }
        for device, state in expected.items():
            self.assertIn(device, usage.devices(state), state)
        self.assertEqual({B, C, D, E, F}, usage.taken())
        self.assertEqual({A}, usage.left())
        self.assertEqual(set(), dataclasses.replace(usage, records=Records({"one": has(A)})).left())
        self.assertEqual(set(), set().union(*(Snapshot().devices(state) for state in State)))


class ClaimsTest(LedgerTestCase):
    """Times and sets; what Nova's tracker makes of its sets is tested with the pool."""

    def test_for_a_time(self) -> None:
        self.claim(A)
        self.now += 30
        self.claim(B)
        self.assertTaken(A, B)
        self.now += 30
        self.assertTaken(B)
        with self.assertNoLogs("nova_gpu.virt.usage.ledger"):
            self.ledger.compare({A}, set())
        self.now += 30
        self.assertTaken()

    def test_where_no_instance_is_busy(self) -> None:
        """Whoever it was handed out to is started or has failed."""
        self.claim(A)
        self.count(busy=frozenset({"one"}))
        self.assertTaken(A)
        self.count()
        self.assertTaken()

    def test_by_the_set_that_knew_it(self) -> None:
        """Neither an equal one nor another provider's"""
        self.claim(A)
        self.ledger.compare({A}, set(self.assigned))
        self.ledger.compare({B, C}, set())
        self.assertTaken(A)
        self.assigned |= {pool.resource("group", A)}
        self.ledger.compare(set(), self.assigned)
        self.assigned.clear()
        self.ledger.compare({A}, self.assigned)
        self.assertTaken()

    def test_put_back(self) -> None:
        self.claim(A)
        self.claim(B, C, back={A})
        self.assertTaken(B, C)

    def test_the_hold_takes_its_place(self) -> None:
        self.claim(A, B)
        with self.hold("one", A):
            self.assertTaken(A, B)
        self.assertTaken(B)
        self.assertRefused(
            "0000:02:00.0.*stranger", self.hold("one", B, look=lambda: {"stranger": frozenset({B})})
        )
        self.assertTaken()
        self.assertStarted(A)


class StartsTest(LedgerTestCase):
    def test_one_start_at_a_time(self) -> None:
        with self.hold("one", A, B):
            self.assertTaken(A, B)
            self.assertEqual({A, B}, self.ledger.now.held_for("one"))
            self.assertEqual(set(), self.ledger.now.held_for("two"))
            self.assertRefused("0000:02:00.0.*started: one", self.hold("two", B, C))
            self.assertRefused("0000:01:00.0.*started: one", self.ledger.clean(A))
            with self.hold("two", C):
                self.assertTaken(A, B, C)
            with self.hold("one", A, D):
                self.assertTaken(A, B, D)
            self.assertTaken(A, B)
        self.assertTaken()
        self.assertEqual(set(), self.ledger.now.held_for("one"))
        with self.assertRaises(OSError), self.hold("one", A):
            raise OSError
        self.assertTaken()

    def test_nobodys_while_it_is_cleaned(self) -> None:
        with self.ledger.clean(A):
            self.assertTaken(A)
            self.assertRefused("0000:01:00.0.*being cleaned", self.hold("one", A, B))
            self.assertRefused("0000:01:00.0.*being cleaned", self.ledger.clean(A))
        self.assertTaken()

    def test_what_somebody_has(self) -> None:
        self.see(one={A})
        self.ledger.keep("two", [B])
        for device, what in ((A, "0000:01:00.0.*in its domain: one"), (B, "02:00.0.*again: two")):
            self.assertRefused(what, self.ledger.clean(device))
        self.assertRefused("0000:02:00.0.*again: two", self.hold("one", B))
        named = {"three": frozenset({C}), "two": frozenset({B})}
        with self.hold("three", C, look=lambda: named):
            self.assertTaken(A, B, C)
        stranger = self.hold("one", C, look=lambda: {"stranger": frozenset({C})})
        self.assertRefused("0000:03:00.0.*stranger.*virsh", stranger)

    def test_while_libvirt_is_asked_for_one_start_another_loses(self) -> None:
        def look() -> DevicesByUuid:
            self.assertIn(A, self.ledger.now.devices(State.STARTING))
            self.assertRefused("0000:01:00.0.*started: one", self.hold("two", A))
            with self.hold("two", B):
                pass  # of another device it does not wait for that answer
            return {}

        with self.hold("one", A, look=look):
            pass

    def test_nobody_who_reads_waits_for_the_look(self) -> None:
        """libvirt may take long to answer a start, and claims go on."""
        seen: list[object] = []

        def read() -> None:
            self.ledger.claim([C], [], set(), 60)
            self.ledger.compare([C], set())
            seen.extend([self.ledger.now.taken(), self.ledger.now.instances()])
            with self.ledger.clean(B):
                seen.append(self.ledger.now.taken())
            try:
                with self.ledger.clean(A):
                    seen.append("cleaned")
            except exception.DeviceUnavailable:
                seen.append("refused")

        reader = threading.Thread(target=read, daemon=True)

        def look() -> DevicesByUuid:
            if not seen:  # and not once more when the start ends
                reader.start()
                reader.join(200)
            return {}

        with self.hold("one", A, look=look):
            self.assertFalse(reader.is_alive(), "it waited for the look")
        self.assertEqual([{A, C}, set(), {A, B, C}, "refused"], seen)

    def test_in_use_until_libvirt_has_answered(self) -> None:
        """It does not say whether the guest runs, and nobody knows."""
        with self.hold_that_ends_unseen():
            pass
        self.assertIn(A, self.ledger.now.devices(State.IN_USE))
        self.assertRefused("0000:01:00.0.*domain: one", self.ledger.clean(A))
        with self.hold("one", A):
            pass  # its own next start
        self.see()
        self.assertTaken()

    def test_an_answer_from_before_does_not_count(self) -> None:
        with self.hold_that_ends_unseen():
            since = self.ledger.now
        self.ledger.saw_domains({}, since=since)
        self.assertTaken(A)
        self.ledger.saw_domains({}, since=self.ledger.now)
        self.assertTaken()

    @contextlib.contextmanager
    def hold_that_ends_unseen(self) -> Iterator[None]:
        look = mock.Mock(side_effect=[{}, exception.DomainsUnreadable("no answer")])
        logged = self.assertLogs("nova_gpu.virt.usage.ledger", "ERROR")
        with logged, self.hold("one", A, look=look):
            yield


_GUEST = "<domain><devices><hostdev type='misc'><source><char>/dev/nvidia0</char></source>"
GUEST = Domain("one", f"{_GUEST}</hostdev></devices></domain>")


class SlowHost:
    """Its first answer is on its way for long, and there is a domain more when it arrives."""

    def __init__(self) -> None:
        self.query, self.arrived = threading.Event(), threading.Event()
        self.guests: Sequence[Domain] = ()

    def list_guests(self, only_running: bool = True) -> Sequence[Domain]:
        answer = self.guests
        if not self.query.is_set():
            self.query.set()
            self.arrived.wait(200)
        return answer


class CensusTest(unittest.TestCase):
    def test_no_answer_takes_the_place_of_a_newer_one(self) -> None:
        host, noted = SlowHost(), ledger.Ledger()
        taken = reader.UsageReader(host, noted, lambda: domains.Parts({"/dev/nvidia0": A}, {}))
        old, new = (threading.Thread(target=taken.look_at_domains) for _ in range(2))
        old.start()
        host.query.wait(200)
        host.guests = (GUEST,)
        new.start()
        new.join(0.3)
        host.arrived.set()
        old.join(200)
        new.join(200)
        self.assertEqual({A}, noted.now.taken())

    def test_a_look_waits_for_an_earlier_one_for_a_bounded_time(self) -> None:
        host, noted = SlowHost(), ledger.Ledger()
        taken = reader.UsageReader(host, noted, lambda: domains.Parts({"/dev/nvidia0": A}, {}))
        old = threading.Thread(target=taken.look_at_domains)
        with mock.patch.object(reader, "_PATIENCE_S", 0.1):
            old.start()
            host.query.wait(200)
            with self.assertRaisesRegex(exception.DomainsUnreadable, "libvirt"):
                taken.look_at_domains()
            host.arrived.set()
            old.join(200)
        host.guests = (GUEST,)
        taken.look_at_domains()
        self.assertEqual({A}, noted.now.taken())
