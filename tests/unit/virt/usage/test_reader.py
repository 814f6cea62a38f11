# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import unittest
from collections.abc import Sequence
from unittest import mock

from nova_gpu.core import exception
from nova_gpu.virt.usage import domains, ledger, reader
from tests.fixtures import cards
from tests.fixtures.histories import Domain

(A,) = cards.addresses("0000:04:00.0")
_GUEST = "<domain><devices><hostdev type='misc'><source><char>/dev/nvidia0</char></source>"
GUEST = Domain("one", f"{_GUEST}</hostdev></devices></domain>")


class SlowHost:
    """Its first answer is on its way for long, and there is a domain more when it arrives."""

    def __init__(self) -> None:
        self.asked, self.arrived = threading.Event(), threading.Event()
        self.guests: Sequence[Domain] = ()

    def list_guests(self, only_running: bool = True) -> Sequence[Domain]:
        answer = self.guests
        if not self.asked.is_set():
            self.asked.set()
            self.arrived.wait(200)
        return answer


class CensusTest(unittest.TestCase):
    def test_no_answer_takes_the_place_of_a_newer_one(self) -> None:
        host, noted = SlowHost(), ledger.Ledger()
        taken = reader.UsageReader(host, noted, lambda: domains.Parts({"/dev/nvidia0": A}, {}))
        old, new = (threading.Thread(target=taken.look_at_domains) for _ in range(2))
        old.start()
        host.asked.wait(200)
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
            host.asked.wait(200)
            with self.assertRaisesRegex(exception.DomainsUnreadable, "libvirt"):
                taken.look_at_domains()
            host.arrived.set()
            old.join(200)
        host.guests = (GUEST,)
        taken.look_at_domains()
        self.assertEqual({A}, noted.now.taken())
