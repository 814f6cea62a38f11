# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core.health_verdict import NvmlHealth
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Scope, Unavailable
from nova_gpu.host.pci import discovery
from nova_gpu.virt.health import monitor
from tests.fixtures import ailments, cards
from tests.fixtures import nvml as machines
from tests.fixtures.bases.host import HostTestCase

A, B = "0000:3b:00.0", "0000:af:00.0"
FIRST, SECOND = cards.addresses(A, B)


class WatchTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        for address in (A, B):
            self.host.add_gpu(address, "10de", "2335")
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.queries: list[set[PciAddress]] = []
        self.health: dict[PciAddress, NvmlHealth] = {}
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.health", self._nvml))
        self.clock = 1000.0
        self.useFixture(fixtures.MonkeyPatch("time.monotonic", lambda: self.clock))
        self.watch = monitor.Watch(self.host.roots, asks_nvml=True)

    def _nvml(
        self, addresses: Iterable[PciAddress], timeout_s: float
    ) -> Mapping[PciAddress, NvmlHealth]:
        self.queries.append(set(addresses))
        return self.health

    def found(self) -> tuple[GPU, ...]:
        return discovery.cards_at([FIRST, SECOND], self.host.roots)

    def look(self) -> tuple[dict[PciAddress, str], dict[PciAddress, str]]:
        """The faults for all instances, and those for new ones alone"""
        reasons_by_card = self.watch.look(self.found())
        for_all, for_new = (
            {
                a: str(reason)
                for a, own in reasons_by_card.items()
                for reason in own
                if reason.scope is scope
            }
            for scope in (Scope.ALL, Scope.NEW)
        )
        return for_all, for_new

    def assertWell(self) -> None:
        self.assertEqual(({}, {}), self.look())


class TestSysfs(WatchTest):
    def test_errors_since(self) -> None:
        """Not those from before"""
        ailments.count_bus_errors(self.host, A, fatal=3, nonfatal=9)
        for _ in range(2):
            self.assertWell()
        ailments.count_bus_errors(self.host, A, fatal=5, nonfatal=9)
        for_all, for_new = self.look()
        self.assertEqual(({}, {FIRST}), (for_all, set(for_new)))
        self.assertIn("2 fatal", for_new[FIRST])
        ailments.count_bus_errors(self.host, A, fatal=6, nonfatal=9)
        self.assertEqual(({}, for_new), self.look())

    def test_it_was_reset(self) -> None:
        ailments.count_bus_errors(self.host, A, fatal=0)
        self.assertWell()
        ailments.count_bus_errors(self.host, A, fatal=1)
        self.assertIn(FIRST, self.look()[1])
        self.watch.mended(FIRST)
        self.assertWell()
        ailments.count_bus_errors(self.host, A, fatal=2)
        self.assertIn("1 fatal", self.look()[1][FIRST])

    def test_it_was_found_anew(self) -> None:
        ailments.silence(self.host, A)
        self.assertEqual(({FIRST: str(monitor.SILENT)}, {}), self.look())
        ailments.answer_again(self.host, A)
        for address in (A, B):
            ailments.count_bus_errors(self.host, address, fatal=1)
        self.assertWell()
        for address in (A, B):
            ailments.count_bus_errors(self.host, address, fatal=2)
        self.assertEqual({FIRST, SECOND}, set(self.look()[1]))
        ailments.count_bus_errors(self.host, A, fatal=0)
        self.host.remove(B)
        self.assertWell()
        self.host.add_gpu(B, "10de", "2335")
        ailments.count_bus_errors(self.host, B, fatal=3)
        self.assertWell()

    def test_corrected_errors_are_told_and_no_more(self) -> None:
        ailments.count_bus_errors(self.host, A, correctable=3)
        self.assertWell()
        ailments.count_bus_errors(self.host, A, correctable=10)
        self.assertWell()
        self.assertIn(f"{A}: its link corrected 7 more PCIe errors", self.log.output)
        self.assertWell()
        self.assertEqual(1, self.log.output.count("its link corrected"))


class TestNvml(WatchTest):
    def test_what_the_driver_says(self) -> None:
        self.health = {FIRST: NvmlHealth(uncorrected=2), SECOND: NvmlHealth(lost=True)}
        for_all, for_new = self.look()
        self.assertEqual({SECOND: str(monitor.LOST)}, for_all)
        self.assertIn("2 ECC errors", for_new[FIRST])
        self.assertEqual([{FIRST, SECOND}], self.queries)

    def test_once_in_the_interval(self) -> None:
        """No answer changes nothing."""
        self.assertWell()
        self.health = {FIRST: NvmlHealth(uncorrected=2)}
        self.clock += CONF.gpu.health_interval - 1
        self.assertWell()
        self.clock += 1
        before = self.look()
        self.assertIn(FIRST, before[1])
        self.health = {}
        self.clock += CONF.gpu.health_interval
        self.assertEqual(before, self.look())
        self.health = {FIRST: NvmlHealth(uncorrected=0)}
        self.clock += CONF.gpu.health_interval
        self.assertWell()

    def test_who_is_not_asked(self) -> None:
        self.host.bind(B, "vfio-pci")
        self.look()
        self.assertEqual([{FIRST}], self.queries)
        monitor.Watch(self.host.roots, asks_nvml=False).look(self.found())
        self.config.config(nvml=False, group="gpu")
        monitor.Watch(self.host.roots, asks_nvml=True).look(self.found())
        self.assertEqual([{FIRST}], self.queries)


class LeftMIGTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        (self.left,) = machines.a100_mig()
        self.left = dataclasses.replace(self.left, mig=())
        self.host.add_gpu(self.left.address, "10de", "20b0", driver="nvidia")
        self.library = self.useFixture(machines.Library(self.left))
        self.put: list[tuple[str, str]] = []

    def judge(self) -> list[tuple[str, str]]:
        def quarantine(card: GPU, fault: Unavailable, until_boot: str | None) -> None:
            self.put.append((str(card.address), str(fault)))
            self.assertIsNone(until_boot)

        card = discovery.card_at(PciAddress.parse(self.left.address), self.host.roots)
        assert card is not None
        monitor.quarantine_left_mig(card, self.host.roots, quarantine)
        return self.put

    def test_quarantine(self) -> None:
        ((address, reason),) = self.judge()
        self.assertEqual(self.left.address, address)
        self.assertIn("it is in MIG mode after its cleaning; a guest may have left it so", reason)
        self.assertIn("nvidia-smi -mig 0", reason)

    def test_one_that_is_not(self) -> None:
        """Nor where the driver does not have it, and where NVML is not asked"""
        self.config.config(group="gpu", nvml=False)
        self.assertEqual([], self.judge())
        self.config.config(group="gpu", nvml=True)
        self.host.bind(self.left.address, "vfio-pci")
        self.assertEqual([], self.judge())
        self.host.bind(self.left.address, "nvidia")
        self.library.say(dataclasses.replace(self.left, mig=None))
        self.assertEqual([], self.judge())
