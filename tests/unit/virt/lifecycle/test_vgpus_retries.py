# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import threading

from oslotest import base

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.lifecycle import vgpus

ONE, TWO = (Slot.parse(f"0000:19:00.0/1g.18gb/{number}") for number in (900, 901))
OTHER = Slot.parse("0000:3b:00.0/1g.18gb/900")


class RetriesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.retries = vgpus.Retries(device.function)
        self.tried: list[Device] = []
        self.bad: set[Device] = set()

    def release(self, device: Device) -> bool:
        self.tried.append(device)
        return device not in self.bad

    def period(self, *left: Device) -> list[Device]:
        """What it tries"""
        self.tried.clear()
        self.retries.begin(left, self.release)
        self.retries.wait()
        return sorted(self.tried, key=str)

    def test_later_and_later(self) -> None:
        self.bad.add(ONE)
        tried = [number for number in range(200) if self.period(ONE)]
        self.assertEqual([0, 1, 3, 7, 15, 31, 63, 123, 183], tried)
        self.bad.clear()
        while not self.period(ONE):
            pass
        self.assertEqual([], self.period())
        self.bad.add(ONE)
        self.assertEqual([ONE], self.period(ONE), "it begins anew")
        self.assertEqual([ONE], self.period(ONE))
        self.assertEqual([], self.period(ONE))

    def test_each_by_itself(self) -> None:
        self.bad.add(ONE)
        for _ in range(2):
            self.period(ONE, OTHER)
        self.assertEqual([TWO, OTHER], self.period(ONE, TWO, OTHER))

    def test_what_a_period_has_begun(self) -> None:
        """However soon it is over: in the next period all of it can be seen."""
        self.retries.begin([ONE], self.release)
        for begun in self.retries._begun.values():
            begun.result()
        self.assertTrue(self.retries.wait())
        self.retries.begin([], self.release)
        self.assertFalse(self.retries.wait())

    def test_nobody_waits(self) -> None:
        """The cards side by side, and of each that is at work nothing more is begun."""
        both, goes_on = threading.Barrier(3, timeout=200), threading.Event()
        self.addCleanup(goes_on.set)

        def hang(device: Device) -> bool:
            self.tried.append(device)
            if device != TWO:
                both.wait()
                goes_on.wait(200)
            return True

        for _ in range(3):
            self.retries.begin([ONE, TWO, OTHER], hang)
        both.wait()
        self.retries.begin([TWO], hang)
        self.assertEqual({ONE, OTHER}, set(self.tried))
        goes_on.set()
        self.assertTrue(self.retries.wait())
        self.assertEqual(
            [ONE, OTHER, TWO], sorted(self.tried, key=lambda each: (each == TWO, str(each)))
        )
