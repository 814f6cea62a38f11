# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import health_verdict, unavailability
from nova_gpu.core.health_verdict import ErrorCounts, NvmlHealth
from nova_gpu.core.unavailability import Repair, Scope, Source, Unavailable


class TestBusErrors(unittest.TestCase):
    def reason(self, first: ErrorCounts, now: ErrorCounts) -> str | None:
        verdict = health_verdict.of_bus_errors(first, now)
        return verdict.reason if verdict else None

    def test_what_was_there_before_and_what_was_corrected_is_no_fault(self) -> None:
        self.assertIsNone(self.reason(ErrorCounts(3, 4, 5), ErrorCounts(3, 4, 5000)))

    def test_a_rise(self) -> None:
        first = ErrorCounts(1, 1, 1)
        for now, words in (
            (ErrorCounts(2, 1, 1), "1 fatal PCIe errors"),
            (ErrorCounts(1, 4, 1), "3 nonfatal PCIe errors"),
            (ErrorCounts(3, 2, 1), "2 fatal and 1 nonfatal PCIe errors"),
        ):
            self.assertIn(words, self.reason(first, now) or "")


class TestNvml(unittest.TestCase):
    def test_well(self) -> None:
        for health in (
            NvmlHealth(),
            NvmlHealth(uncorrected=0, remapping_pending=False, recovery_action=0),
            NvmlHealth(fabric_state=0, fabric_status=0),
            NvmlHealth(fabric_state=3, fabric_status=0),
            # All that the mask has: no fault, or that it passes by itself
            NvmlHealth(fabric_state=3, fabric_status=0, fabric_health=0b01_01_0001_10_10_10_10),
            NvmlHealth(fabric_state=3, fabric_status=0, fabric_health=0b01_00_01_00),
        ):
            self.assertIsNone(health_verdict.of_nvml(health))

    def test_not_well(self) -> None:
        for health, words in (
            (NvmlHealth(uncorrected=2), "2 ECC errors"),
            (NvmlHealth(retirement_pending=True), "retired"),
            (NvmlHealth(compute_mode=2), "PROHIBITED"),
            (NvmlHealth(remapping_pending=True), "remapped"),
            (NvmlHealth(recovery_action=2), "boot the host"),
            (NvmlHealth(recovery_action=99), "nvidia-smi -q"),
            (NvmlHealth(remapping_failed=True, recovery_action=1), "replace"),
            # DCGM's test of the same (CacheManger::GetFMStatusFromStruct) has these pairs.
            (NvmlHealth(fabric_state=1, fabric_status=0), "(state: not started)"),
            (NvmlHealth(fabric_state=2, fabric_status=0), "(state: in progress)"),
            (NvmlHealth(fabric_state=27, fabric_status=10), "(state: 27)"),
            (NvmlHealth(fabric_state=3, fabric_status=10), "(NVML error 10)"),
            # Fabric Manager may run and have the driver's version.
            (NvmlHealth(fabric_state=2, fabric_status=0), "FABRIC_MODE=0"),
            (NvmlHealth(fabric_state=3, fabric_health=1), "less than its bandwidth"),
            (NvmlHealth(fabric_state=3, fabric_health=1 << 4), "route in the fabric"),
            (NvmlHealth(fabric_state=3, fabric_health=5 << 8), "configuration does not fit"),
        ):
            verdict = health_verdict.of_nvml(health)
            self.assertIn(words, str(verdict), health)
            self.assertIn("; ", str(verdict))


class AsksTest(unittest.TestCase):
    def test_steps(self) -> None:
        """What nvml.h and the Xid catalog ask for"""
        of_nvml, of_xid = health_verdict.of_nvml, health_verdict.of_xid
        steps = [None, "RESET", "REBOOT", *["DRAIN_AND_RESET"] * 2, None, "BUS_RESET", "REBOOT"]
        faults = [(of_nvml(NvmlHealth(recovery_action=n)), steps[n]) for n in range(1, 8)]
        for fault, step in (
            *faults,
            (of_nvml(NvmlHealth(recovery_action=99)), None),
            (of_nvml(NvmlHealth(remapping_failed=True, recovery_action=1)), "SERVICE"),
            (of_nvml(NvmlHealth(uncorrected=1)), "RESET"),
            (of_nvml(NvmlHealth(retirement_pending=True)), "RESET"),
            (of_nvml(NvmlHealth(remapping_pending=True)), "RESET"),
            (of_nvml(NvmlHealth(compute_mode=2)), None),
            (of_nvml(NvmlHealth(fabric_state=1)), None),
            (of_nvml(NvmlHealth(fabric_state=3, fabric_health=1)), "REBOOT"),
            (of_xid(79, ""), "REBOOT"),
            (of_xid(48, ""), "RESET"),
            (health_verdict.of_bus_errors(ErrorCounts(0, 0, 0), ErrorCounts(1, 0, 0)), "RESET"),
            (health_verdict.of_mig_mode(), None),
        ):
            assert fault is not None
            self.assertEqual(step and Repair[step], fault.asks, fault)


class TestXid(unittest.TestCase):
    def test_words(self) -> None:
        for text, instance, reason in (
            ("", None, "its driver reported Xid 95"),
            ("Uncontained", "9/0", "its driver reported Xid 95 of MIG instance 9/0 (Uncontained)"),
        ):
            self.assertEqual(reason, health_verdict.of_xid(95, text, instance).reason)


KEPT = Unavailable("it is in quarantine", "replace it", Source.QUARANTINE)
GONE = Unavailable("it is gone", "", Source.BUS, Scope.ALL)
NO_IOMMU = Unavailable("no IOMMU is on", "turn it on", Source.HOST, Scope.ALL)


class AvailabilityTest(unittest.TestCase):
    def test_text(self) -> None:
        self.assertEqual(("it is in quarantine; replace it", "it is gone"), (str(KEPT), str(GONE)))
        self.assertEqual(
            (None, "it is gone"), (unavailability.text(()), unavailability.text((GONE,)))
        )

    def test_merge(self) -> None:
        """In the order of the maps, each reason once; who has none is offered"""
        reasons = unavailability.merge({"a": (KEPT,), "b": ()}, {"a": (GONE, KEPT), "c": (GONE,)})
        self.assertEqual({"a": (KEPT, GONE), "c": (GONE,)}, reasons)

    def test_worst(self) -> None:
        self.assertEqual(GONE, unavailability.worst((KEPT, GONE, NO_IOMMU)))
        self.assertEqual((KEPT, None), (unavailability.worst((KEPT,)), unavailability.worst(())))
        self.assertIsNone(unavailability.for_all((KEPT,)))
        self.assertIsNone(unavailability.for_all(unavailability.to_new((GONE, NO_IOMMU))))

    def test_what_is_not_published(self) -> None:
        self.assertEqual(NO_IOMMU, unavailability.of_host((KEPT, GONE, NO_IOMMU)))
        self.assertIsNone(unavailability.of_host((KEPT, GONE)))
        self.assertEqual([False, True, False], [r.is_fault for r in (KEPT, GONE, NO_IOMMU)])
