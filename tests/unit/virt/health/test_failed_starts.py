# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import types

import fixtures

from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Source
from nova_gpu.core.vgpu.vgpu import VGPUKind
from nova_gpu.virt.health import failed_starts
from tests.fixtures import cards, kernel
from tests.fixtures.bases.host import HostTestCase

ONE, TWO = cards.addresses("0000:3b:00.4", "0000:3b:00.5")
TYPED = VGPUKind.TYPED
TEN_MINUTES_S = 600.0
WHY = RuntimeError("vfio 0000:3b:00.4: error getting device from group 7")


class FailedStartsTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
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
            self.starts.failed(TYPED, ONE, "EIO", WHY, is_its_own=True)

    def device(self) -> pathlib.Path:
        return (self.host.roots.sysfs / "bus/pci/devices" / str(ONE)).resolve()

    def enable_anew(self) -> None:
        """Beside the old folder the new one gets another number, as always in sysfs."""
        device = self.device()
        device.rename(device.with_name("old"))
        device.mkdir()


class OfFunctionTest(FailedStartsTestCase):
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
        self.starts.started(TYPED, [ONE, TWO])
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
        self.starts.started(TYPED, [ONE])
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

    def test_file_that_cannot_be_read(self) -> None:
        for function in ('["here", 1, 3]', f'["{ONE}", 1]', f'["{ONE}", 1, 1e999]', "1"):
            self.path.write_text(f'{{"boot_id": "first", "functions": [{function}]}}')
            self.assertEqual(frozenset(), self.again().unavailable().keys())
        for failures in ('["MADE", "x", []]', '[null, "x", ["EIO", 1, 0, 0, null]]', "1"):
            self.path.write_text(
                f'{{"boot_id": "first", "functions": [["{ONE}", 1, 3]], "failures": [{failures}]}}'
            )
            self.assertEqual(frozenset(), self.again().unavailable().keys())
        self.path.unlink()
        self.path.mkdir()
        self.starts = self.again()
        self.fail(3)
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.assertIn("lasts until nova-compute ends", self.log.output)


class OfHostTest(FailedStartsTestCase):
    """Failures of several devices"""

    DEVICES = cards.addresses(*(f"0000:3b:00.{number}" for number in range(4, 8)))

    def setUp(self) -> None:
        super().setUp()
        self.now = 1000.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.virt.health.failed_starts.time", clock))

    def fail_with(self, *devices: PciAddress, cause: str = "EIO") -> None:
        for device in devices:
            self.starts.failed(TYPED, device, cause, WHY, is_its_own=True)

    def given(self) -> set[PciAddress]:
        closed = self.starts.failing(TYPED, self.DEVICES)
        for reasons in closed.values():
            self.assertEqual([Source.STARTS], [reason.source for reason in reasons])
        return set(self.DEVICES) - closed.keys()

    def test_two_alike_close_the_host_and_are_not_at_fault(self) -> None:
        self.fail_with(ONE, ONE, ONE)
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.assertEqual(set(self.DEVICES) - {ONE}, self.given())
        self.now += TEN_MINUTES_S - 1
        self.fail_with(TWO)
        self.assertEqual((set(), set()), (set(self.starts.unavailable()), self.given()))
        self.assertEqual({}, self.starts.failing(None, self.DEVICES), "of another kind")
        self.assertEqual(1, self.log.output.count("get virtual functions with vGPU types of this"))
        self.starts = self.again()
        self.assertEqual((set(), set()), (set(self.starts.unavailable()), self.given()))
        self.assertEqual(2, self.log.output.count("get virtual functions with vGPU types of this"))

    def test_one_start_in_ten_minutes_until_one_succeeds(self) -> None:
        self.fail_with(ONE, TWO)
        for _ in range(3):
            self.now += TEN_MINUTES_S - 1
            self.assertEqual(set(), self.given())
            self.now += 1
            # All of them: a flavor may ask for several.
            self.assertEqual(set(self.DEVICES), self.given())
            self.assertTrue(self.starts.begins(TYPED))
            self.starts = self.again()
            self.assertEqual(set(), self.given(), "another one beside it")
            self.now += 1
            self.fail_with(ONE)
            self.now -= 1
        self.now += TEN_MINUTES_S
        self.starts.started(TYPED, [ONE])
        self.assertEqual((set(self.DEVICES), set()), (self.given(), set(self.starts.unavailable())))
        self.starts = self.again()
        self.assertEqual(set(self.DEVICES), self.given())

    def test_a_guest_that_fails_again_and_again(self) -> None:
        """With the device that it has: it takes nobody else's turn."""
        self.fail_with(ONE, TWO)
        for _ in range(2):
            self.now += TEN_MINUTES_S / 2
            self.fail_with(ONE)
        self.assertEqual(set(self.DEVICES), self.given())

    def test_what_one_project_asks_for(self) -> None:
        for device, project, is_given in (
            (ONE, "one", True),
            (TWO, "one", True),
            (TWO, "two", False),
        ):
            self.starts.failed(TYPED, device, "unknown", WHY, project_id=project)
            self.assertEqual(is_given, bool(self.given()))

    def test_what_closes_no_host(self) -> None:
        self.fail_with(*[ONE] * 9)
        self.assertEqual(set(self.DEVICES) - {ONE}, self.given(), "one device")
        self.fail_with(TWO, cause="EBUSY")
        self.assertEqual(set(self.DEVICES) - {ONE}, self.given(), "another cause")
        self.now += TEN_MINUTES_S + 1
        self.fail_with(self.DEVICES[2])
        self.assertEqual(set(self.DEVICES), self.given(), "long after")
        self.starts.started(TYPED, [self.DEVICES[3]])
        self.fail_with(TWO)
        self.assertEqual(set(self.DEVICES), self.given(), "one started in between")

    def test_a_function_stays_out_only_if_another_one_started(self) -> None:
        self.fail(3)
        self.now += TEN_MINUTES_S
        self.assertEqual({}, self.starts.unavailable())
        self.fail(1)
        self.assertEqual({ONE}, self.starts.unavailable().keys())
        self.starts.started(TYPED, [TWO])
        self.now += TEN_MINUTES_S
        self.assertEqual({ONE}, self.starts.unavailable().keys())

    def test_another_device_is_tried_again_after_ten_minutes(self) -> None:
        """As a whole card: nothing shows that it was repaired."""
        for _ in range(failed_starts.MOST):
            self.assertEqual({}, self.starts.failing(None, self.DEVICES))
            self.starts.failed(None, ONE, "it could not be reset", WHY)
        self.assertEqual({ONE}, self.starts.failing(None, self.DEVICES).keys())
        self.assertIn(f"3 starts in a row failed with {ONE}", self.log.output)
        self.starts.started(None, [TWO])
        self.assertEqual({ONE}, self.starts.failing(None, self.DEVICES).keys())
        self.starts.failed(None, TWO, "it could not be reset", WHY)
        self.assertEqual({ONE}, self.starts.failing(None, self.DEVICES).keys(), "it is its own")
        self.now += TEN_MINUTES_S
        self.assertEqual({}, self.starts.failing(None, self.DEVICES))
        self.starts.failed(None, ONE, "it could not be reset", WHY)
        self.assertEqual({ONE}, self.starts.failing(None, self.DEVICES).keys())
        self.now += TEN_MINUTES_S
        self.starts.started(None, [ONE])
        self.assertEqual({}, self.starts.failing(None, self.DEVICES))
