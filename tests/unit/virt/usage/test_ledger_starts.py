# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import threading
import unittest
from collections.abc import Iterator

from nova_gpu.core import exception
from nova_gpu.virt.usage.ledger import Ledger, Named, Snapshot, State
from tests.fixtures import cards

A, B, C = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0")


def nobody() -> Named:
    return {}


class StartsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()

    def assertRefused(self, text: str, reserved: contextlib.AbstractContextManager[None]) -> None:
        with self.assertRaisesRegex(exception.DeviceUnavailable, text), reserved:
            self.fail("reserved twice")

    def test_held_while_it_is_held(self) -> None:
        with self.ledger.hold("one", frozenset({A, B}), nobody):
            self.assertEqual({A, B}, self.ledger.now.taken())
            self.assertEqual({A, B}, self.ledger.now.held_for("one"))
            self.assertEqual(set(), self.ledger.now.held_for("two"))
        self.assertEqual(set(), self.ledger.now.taken())
        self.assertEqual(set(), self.ledger.now.held_for("one"))

    def test_another_start_is_refused(self) -> None:
        with self.ledger.hold("one", frozenset({A, B}), nobody):
            self.assertRefused(
                "0000:05:00.0.*started: one", self.ledger.hold("two", frozenset({B, C}), nobody)
            )
            with self.ledger.hold("two", frozenset({C}), nobody):
                self.assertEqual({A, B, C}, self.ledger.now.taken())

    def test_nobodys_while_it_is_cleaned(self) -> None:
        with self.ledger.clean(A):
            self.assertEqual({A}, self.ledger.now.taken())
            self.assertRefused(
                "0000:04:00.0.*being cleaned", self.ledger.hold("one", frozenset({A, B}), nobody)
            )
            self.assertRefused("0000:04:00.0.*being cleaned", self.ledger.clean(A))
        self.assertEqual(set(), self.ledger.now.taken())

    def test_what_somebody_has_is_not_cleaned(self) -> None:
        with self.ledger.hold("one", frozenset({A}), nobody):
            self.assertRefused("0000:04:00.0.*started: one", self.ledger.clean(A))
        self.ledger.saw_domains({"one": frozenset({A})})
        self.ledger.keep("two", [B])
        for device, what in ((A, "0000:04:00.0.*in its domain: one"), (B, "05:00.0.*again: two")):
            self.assertRefused(what, self.ledger.clean(device))

    def test_another_domain_is_refused(self) -> None:
        self.assertRefused(
            "0000:04:00.0.*stranger.*virsh",
            self.ledger.hold("one", frozenset({A}), lambda: {"stranger": frozenset({A})}),
        )
        self.assertEqual(set(), self.ledger.now.taken())

    def test_its_own_domain_is_no_other(self) -> None:
        named = {"one": frozenset({A}), "two": frozenset({B})}
        with self.ledger.hold("one", frozenset({A}), lambda: named):
            self.assertEqual({A}, self.ledger.now.taken())

    def test_one_inside_another_of_the_same_instance(self) -> None:
        with self.ledger.hold("one", frozenset({A}), nobody):
            with self.ledger.hold("one", frozenset({A, B}), nobody):
                self.assertEqual({A, B}, self.ledger.now.taken())
            self.assertEqual({A}, self.ledger.now.taken())

    def test_given_up_when_the_start_fails(self) -> None:
        with self.assertRaises(OSError), self.ledger.hold("one", frozenset({A}), nobody):
            raise OSError
        self.assertEqual(set(), self.ledger.now.taken())

    def test_nothing_is_kept_of_instances_past(self) -> None:
        for number in range(3):
            with self.ledger.hold(str(number), frozenset(), nobody, frozenset({A})):
                pass
        self.assertEqual(Snapshot(), self.ledger.now)

    def test_one_that_is_kept_for_another_is_refused(self) -> None:
        self.ledger.keep("one", [A])
        self.assertRefused(
            "0000:04:00.0.*again: one", self.ledger.hold("two", frozenset({A}), nobody)
        )

    def test_while_libvirt_is_asked_for_one_start_another_loses(self) -> None:
        def look() -> Named:
            self.assertIn(A, self.ledger.now.devices(State.STARTING))
            self.assertRefused(
                "0000:04:00.0.*started: one", self.ledger.hold("two", frozenset({A}), nobody)
            )
            with self.ledger.hold("two", frozenset({B}), nobody):
                pass  # of another device it does not wait for that answer
            return {}

        with self.ledger.hold("one", frozenset({A}), look):
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

        def look() -> Named:
            if not seen:  # and not once more when the start ends
                reader.start()
                reader.join(200)
            return {}

        with self.ledger.hold("one", frozenset({A}), look):
            self.assertFalse(reader.is_alive(), "it waited for the look")
        self.assertEqual([{A, C}, set(), {A, B, C}, "refused"], seen)

    def test_nothing_is_kept_of_a_look_that_fails(self) -> None:
        def look() -> Named:
            raise exception.DomainsUnreadable("no answer")

        with (
            self.assertRaises(exception.DomainsUnreadable),
            self.ledger.hold("one", frozenset({A}), look),
        ):
            self.fail("held without a look")
        self.assertEqual(set(), self.ledger.now.taken())

    def test_in_use_until_libvirt_has_answered(self) -> None:
        """It does not say whether the guest runs, and nobody knows."""
        with self.hold_that_ends_unseen():
            pass
        self.assertIn(A, self.ledger.now.devices(State.IN_USE))
        self.assertRefused("0000:04:00.0.*domain: one", self.ledger.clean(A))
        with self.ledger.hold("one", frozenset({A}), nobody):
            pass  # its own next start
        self.ledger.saw_domains({})
        self.assertEqual(set(), self.ledger.now.taken())

    def test_an_answer_from_before_does_not_count(self) -> None:
        with self.hold_that_ends_unseen():
            since = self.ledger.now
        self.ledger.saw_domains({}, since=since)
        self.assertEqual({A}, self.ledger.now.taken())
        self.ledger.saw_domains({}, since=self.ledger.now)
        self.assertEqual(set(), self.ledger.now.taken())

    @contextlib.contextmanager
    def hold_that_ends_unseen(self) -> Iterator[None]:
        answers = [{}]

        def look() -> Named:
            if not answers:
                raise exception.DomainsUnreadable("no answer")
            return answers.pop()

        logged = self.assertLogs("nova_gpu.virt.usage.ledger", "ERROR")
        with logged, self.ledger.hold("one", frozenset({A}), look):
            yield
