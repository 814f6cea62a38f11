# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

from nova_gpu.core.health_verdict import ErrorCounts
from nova_gpu.host import pci_errors
from tests.fixtures import ailments, pci
from tests.fixtures.bases.host import HostTestCase

CARD, SOUND, PORT = "0000:81:00.0", "0000:81:00.1", "0000:80:01.0"


class HealthTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_bridge(PORT)
        self.host.add_gpu(CARD, "10de", "1e04", parent=PORT)
        self.host.add_device(SOUND, "10de", "10f7", class_code=pci.AUDIO, parent=PORT)
        self.card = self.gpu_at(CARD)

    def silent(self) -> list[str]:
        return [str(reason) for reason in pci_errors.silent(self.card, self.host.roots)]

    def counts(self) -> ErrorCounts | None:
        return pci_errors.bus_errors(self.card, self.host.roots)


class TestSilent(HealthTest):
    def test_any_function(self) -> None:
        ailments.silence(self.host, SOUND)
        self.assertEqual([SOUND], self.silent())
        ailments.silence(self.host, CARD)
        self.assertEqual([CARD, SOUND], self.silent())
        ailments.answer_again(self.host, CARD)
        self.host.remove(SOUND)  # one that is gone is not silent
        self.assertEqual([], self.silent())

    def test_what_cannot_be_read_is_silent(self) -> None:
        config = self.host.path(CARD) / "config"
        config.unlink()
        config.mkdir()  # a read of it is an error
        self.assertEqual([CARD], self.silent())


class TestUnusable(HealthTest):
    def unusable(self) -> str | None:
        return pci_errors.unusable(self.card, self.host.roots)

    def test_any_function(self) -> None:
        pci.write_bars(self.host.path(SOUND), [(16, True), (1, False)])
        self.assertIsNone(self.unusable())
        ailments.leave_without_place(self.host, SOUND)
        self.assertIn(f"could not assign a BAR of {SOUND}", str(self.unusable()))

    def test_unread_and_gone(self) -> None:
        resource = self.host.path(CARD) / "resource"
        resource.unlink()
        self.assertIn("cannot be read", str(self.unusable()))
        self.host.remove(CARD)
        self.assertIsNone(self.unusable())


class TestBusErrors(HealthTest):
    def test_at_both_ends_of_the_link(self) -> None:
        self.assertIsNone(self.counts())
        ailments.count_bus_errors(self.host, PORT, fatal=4, correctable=1)
        self.assertEqual(ErrorCounts(4, 0, 1), self.counts())
        ailments.count_bus_errors(self.host, CARD, nonfatal=2)
        self.assertEqual(ErrorCounts(4, 2, 1), self.counts())

    def test_garbage(self) -> None:
        for text in ("", "TOTAL_ERR_FATAL", "TOTAL_ERR_FATAL many", "Receiver Error 3"):
            ailments.count_bus_errors(self.host, CARD, nonfatal=1)
            pathlib.Path(self.host.path(CARD) / "aer_dev_fatal").write_text(text)
            self.assertIsNone(self.counts(), text)
