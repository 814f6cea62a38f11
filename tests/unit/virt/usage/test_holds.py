# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import unittest
from unittest import mock

from nova_gpu.core import exception
from nova_gpu.virt.usage import holds
from nova_gpu.virt.usage.holds import Holds, Named
from tests.fixtures import cards

A, B, C = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0")


def nobody() -> Named:
    return {}


class HoldsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.holds = Holds()

    def test_held_while_it_is_held(self) -> None:
        with self.holds.hold("one", frozenset({A, B}), nobody):
            self.assertEqual({A, B}, self.holds.held())
            self.assertEqual({A, B}, self.holds.held_for("one"))
            self.assertEqual(set(), self.holds.held_for("two"))
        self.assertEqual(set(), self.holds.held())
        self.assertEqual(set(), self.holds.held_for("one"))

    def test_another_start_is_refused(self) -> None:
        with self.holds.hold("one", frozenset({A, B}), nobody):
            with (
                self.assertRaisesRegex(exception.DeviceUnavailable, "0000:05:00.0.*started: one"),
                self.holds.hold("two", frozenset({B, C}), nobody),
            ):
                self.fail("held twice")
            with self.holds.hold("two", frozenset({C}), nobody):
                self.assertEqual({A, B, C}, self.holds.held())

    def test_nobodys_while_it_is_cleaned(self) -> None:
        with self.holds.clean(A, nobody):
            self.assertEqual({A}, self.holds.held())
            with (
                self.assertRaisesRegex(exception.DeviceUnavailable, "0000:04:00.0.*being cleaned"),
                self.holds.hold("one", frozenset({A, B}), nobody),
            ):
                self.fail("started with a card that is being cleaned")
            with (
                self.assertRaisesRegex(exception.DeviceUnavailable, "0000:04:00.0.*being cleaned"),
                self.holds.clean(A, nobody),
            ):
                self.fail("cleaned twice")
        self.assertEqual(set(), self.holds.held())

    def test_what_somebody_has_is_not_cleaned(self) -> None:
        with (
            self.holds.hold("one", frozenset({A}), nobody),
            self.assertRaisesRegex(exception.DeviceUnavailable, "0000:04:00.0.*started: one"),
            self.holds.clean(A, nobody),
        ):
            self.fail("cleaned under a start")
        with (
            self.assertRaisesRegex(exception.DeviceUnavailable, "0000:04:00.0.*one.*domain"),
            self.holds.clean(A, lambda: {"one": frozenset({A})}),
        ):
            self.fail("cleaned under a guest")

    def test_another_domain_is_refused(self) -> None:
        with (
            self.assertRaisesRegex(exception.DeviceUnavailable, "0000:04:00.0.*stranger.*virsh"),
            self.holds.hold("one", frozenset({A}), lambda: {"stranger": frozenset({A})}),
        ):
            self.fail("taken from a domain")
        self.assertEqual(set(), self.holds.held())

    def test_its_own_domain_is_no_other(self) -> None:
        named = {"one": frozenset({A}), "two": frozenset({B})}
        with self.holds.hold("one", frozenset({A}), lambda: named):
            self.assertEqual({A}, self.holds.held())

    def test_one_inside_another_of_the_same_instance(self) -> None:
        with self.holds.hold("one", frozenset({A}), nobody):
            with self.holds.hold("one", frozenset({A, B}), nobody):
                self.assertEqual({A, B}, self.holds.held())
            self.assertEqual({A}, self.holds.held())

    def test_given_up_when_the_start_fails(self) -> None:
        with self.assertRaises(OSError), self.holds.hold("one", frozenset({A}), nobody):
            raise OSError
        self.assertEqual(set(), self.holds.held())

    def test_nothing_is_kept_of_instances_past(self) -> None:
        for number in range(3):
            with self.holds.hold(str(number), frozenset({A}), nobody):
                pass
        self.assertEqual({}, self.holds._by_instance)

    def test_look_and_hold_are_one_step(self) -> None:
        """A start between the look at the domains and the hold has to wait, and loses."""
        outcomes: list[str] = []

        def second() -> None:
            try:
                with self.holds.hold("two", frozenset({A}), nobody):
                    outcomes.append("held")
            except exception.DeviceUnavailable:
                outcomes.append("refused")

        thread = threading.Thread(target=second)

        def look() -> Named:
            thread.start()
            thread.join(0.2)
            self.assertEqual([], outcomes)
            return {}

        with self.holds.hold("one", frozenset({A}), look):
            thread.join(200)
        self.assertEqual(["refused"], outcomes)

    def test_nobody_who_reads_waits_for_the_look(self) -> None:
        """libvirt may take long to answer a start, and every claim reads."""
        seen: list[object] = []

        def read() -> None:
            seen.extend([self.holds.held(), self.holds.instances()])
            with self.holds.clean(B, nobody):
                seen.append(self.holds.held())
            try:
                with self.holds.clean(A, nobody):
                    seen.append("cleaned")
            except exception.DeviceUnavailable:
                seen.append("refused")

        reader = threading.Thread(target=read, daemon=True)

        def look() -> Named:
            reader.start()
            reader.join(200)
            return {}

        with self.holds.hold("one", frozenset({A}), look):
            self.assertFalse(reader.is_alive(), "it waited for the look")
        self.assertEqual([{A}, set(), {A, B}, "refused"], seen)

    def test_a_start_waits_for_others_for_a_bounded_time(self) -> None:
        answered = threading.Event()

        def look() -> Named:
            answered.wait(200)
            return {}

        def first() -> None:
            with self.holds.hold("one", frozenset({A}), look):
                pass

        thread = threading.Thread(target=first)
        with mock.patch.object(holds, "_PATIENCE_S", 0.1):
            thread.start()
            while not self.holds.held():
                thread.join(0.01)
            with (
                self.assertRaisesRegex(exception.DeviceUnavailable, "0000:05:00.0.*libvirt"),
                self.holds.hold("two", frozenset({B}), nobody),
            ):
                self.fail("held without a look")
            answered.set()
            thread.join(200)
        with self.holds.hold("two", frozenset({A, B}), nobody):
            self.assertEqual({A, B}, self.holds.held())

    def test_nothing_is_kept_of_a_look_that_fails(self) -> None:
        def look() -> Named:
            raise exception.DomainsUnreadable("no answer")

        with (
            self.assertRaises(exception.DomainsUnreadable),
            self.holds.hold("one", frozenset({A}), look),
        ):
            self.fail("held without a look")
        self.assertEqual(set(), self.holds.held())
