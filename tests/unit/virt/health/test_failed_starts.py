# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.virt.health import failed_starts
from tests.fixtures import cards, hosts, kernel

ONE, TWO = cards.addresses("0000:3b:00.4", "0000:3b:00.5")
WHY = RuntimeError("vfio 0000:3b:00.4: error getting device from group 7")


class FailedStartsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        kernel.boot(self.host, "first")
        for function in (ONE, TWO):
            self.host.add_gpu(str(function), "10de", "26b9")
        self.path = self.host.root / "gpu-failed-starts"
        self.starts = self.again()

    def again(self) -> failed_starts.FailedStarts:
        """As a service that starts has them"""
        return failed_starts.FailedStarts(self.path, self.host.roots)

    def fail(self, times: int) -> None:
        for _ in range(times):
            self.starts.failed([ONE], WHY)

    def device(self) -> pathlib.Path:
        return (self.host.roots.sysfs / "bus/pci/devices" / str(ONE)).resolve()

    def enable_anew(self) -> None:
        """Beside the old folder the new one gets another number, as always in sysfs."""
        device = self.device()
        device.rename(device.with_name("old"))
        device.mkdir()

    def test_several_in_a_row(self) -> None:
        self.fail(2)
        self.assertEqual(frozenset(), self.starts.unavailable().keys())
        self.assertEqual("", self.log.output)
        self.fail(2)
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.assertEqual(
            1,
            self.log.output.count(
                f"New instances do not get virtual function {ONE}: 3 guests in a"
            ),
        )
        self.assertIn("error getting device from group 7", self.log.output)
        self.assertIn("sriov-manage -d, then -e", self.log.output)

    def test_what_comes_between(self) -> None:
        """A guest that starts, and functions that are enabled anew"""
        self.fail(2)
        self.starts.started([ONE, TWO])
        self.fail(2)
        self.assertEqual(frozenset(), self.starts.unavailable().keys())
        self.enable_anew()
        self.fail(2)
        self.assertEqual(frozenset(), self.starts.unavailable().keys())

    def test_services_that_start_between(self) -> None:
        for _ in range(3):
            self.assertEqual(frozenset(), self.starts.unavailable().keys())
            self.fail(1)
            self.starts = self.again()
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.assertIn(f"New instances do not get virtual functions {ONE}: before", self.log.output)
        self.starts.started([ONE])
        self.assertEqual(frozenset(), self.again().unavailable().keys())

    def test_over_when_it_was_enabled_anew(self) -> None:
        self.fail(3)
        self.starts.look()
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.enable_anew()
        self.starts.look()
        self.assertEqual(frozenset(), self.starts.unavailable().keys())
        self.assertEqual(frozenset(), self.again().unavailable().keys())

    def test_over_when_it_is_gone_or_the_host_has_booted(self) -> None:
        self.fail(3)
        self.assertEqual({ONE}, self.again().unavailable().keys())
        kernel.boot(self.host, "second")
        self.assertEqual(frozenset(), self.again().unavailable().keys())
        self.device().rename(self.path.with_name("gone"))
        self.fail(1)
        self.starts.look()
        self.assertEqual(frozenset(), self.starts.unavailable().keys())

    def test_file_that_cannot_be_read_or_written(self) -> None:
        for function in ('["here", 1, 3]', f'["{ONE}", 1]', f'["{ONE}", 1, 1e999]', "1"):
            self.path.write_text(f'{{"boot_id": "first", "functions": [{function}]}}')
            self.assertEqual(frozenset(), self.again().unavailable().keys())
        self.path.unlink()
        self.path.mkdir()
        self.starts = self.again()
        self.fail(3)
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.assertIn("are withheld until nova-compute ends", self.log.output)
