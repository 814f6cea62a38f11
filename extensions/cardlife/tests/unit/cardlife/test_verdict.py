# SPDX-License-Identifier: Apache-2.0
"""What a test's program answers, and what follows from it"""

from __future__ import annotations

import json
import unittest
from typing import Any

from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Repair
from nova_gpu_cardlife.core import verdict
from nova_gpu_cardlife.core.verdict import Verdict

# As DCGM 4.4.2 prints it
DISCOVERY = """2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA T4G                                                     |
|        | PCI Bus ID: 00000000:00:1F.0                                         |
|        | Device UUID: GPU-9ca02968-f496-c0c4-01d9-509cb6c32f5f                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA T4G                                                     |
|        | PCI Bus ID: 00000000:3B:00.0                                         |
|        | Device UUID: GPU-5d3e1c8a-0000-c0c4-01d9-509cb6c32f5f                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
"""


def said(severity: Any, **others: Any) -> str:
    return json.dumps({"overall_severity": severity, **others})


class ProgramTest(unittest.TestCase):
    def test_answers(self) -> None:
        for status, output, expected, text in (
            (0, said("PASS"), "PASS", ""),
            (0, said("Info"), "INFO", ""),
            (0, said("WARNING", summary="a fan is slow"), "WARNING", "a fan is slow"),
            (1, said("CRITICAL", summary="row\nremap"), "CRITICAL", "row remap"),
            (1, said("UNKNOWN"), "UNKNOWN", ""),
            (0, said("PASS", summary=["no text"]), "PASS", ""),
            (1, said("PASS"), "UNKNOWN", "its exit status 1 contradicts its verdict PASS"),
            (0, said("CRITICAL"), "UNKNOWN", "its exit status 0 contradicts its verdict CRITICAL"),
            (2, said("PASS"), "UNKNOWN", "its exit status 2 contradicts its verdict PASS"),
            (2, "", "UNKNOWN", "it ended with 2 and printed no verdict"),
            *(
                (0, garbage, "UNKNOWN", "it ended with 0 and printed no verdict")
                for garbage in (
                    *("", "PASS", "[]", "null", '"PASS"', said(None), said(["PASS"]), said("OK")),
                    *(said("PASS")[:-1], said("PASS") + said("PASS"), '{"verdict": "PASS"}'),
                    *("\0\ufffd", "[" * 100000, said("")),
                )
            ),
        ):
            with self.subTest(output[:80], status=status):
                outcome = verdict.of_program(status, output)
                self.assertEqual((expected, text), (outcome.verdict.value, outcome.text))

    def test_what_sells(self) -> None:
        selling = [one.name for one in Verdict if one.sells]
        self.assertEqual(["PASS", "INFO", "WARNING"], selling)


def result(status: str, gpu: int = 1, warning: str | None = None) -> dict[str, Any]:
    warnings = [{"warning": warning, "error_severity": 2}] if warning else []
    own = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status}
    return own | ({"warnings": warnings} if warnings else {})


def diag(*tests: tuple[str, str, Any], version: str = "4.2.3", **more: Any) -> str:
    """What ``dcgmi diag -j`` prints: tests with their category, name and results"""
    categories = [
        {
            "category": category,
            "tests": [{"name": name, "results": results, "test_summary": {"status": "Pass"}}],
        }
        for category, name, results in tests
    ]
    own = {"test_categories": categories, **more}
    return json.dumps({"DCGM Diagnostic": own, "metadata": {"version": version}})


SOFTWARE = ("Deployment", "software", [result("Pass")])
MEMORY = ("Hardware", "memory", [result("Pass")])
SKIPPED = {"name": "memory", "results": [result("Skip")], "test_summary": {"status": "Skip"}}
PARTIAL = json.dumps(
    {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": "Deployment",
                    "tests": [{"name": "software", "results": [result("Pass")]}],
                },
                {"category": "Hardware", "tests": [SKIPPED]},
            ]
        },
        "metadata": {"version": "4.2.3"},
    }
)


class DcgmTest(unittest.TestCase):
    def test_number_of_a_card(self) -> None:
        for address, number in (("0000:00:1f.0", 0), ("0000:3b:00.0", 1), ("0000:3c:00.0", None)):
            card = PciAddress.parse(address)
            self.assertEqual(number, verdict.dcgm_gpu(DISCOVERY, card), address)
        self.assertIsNone(verdict.dcgm_gpu("Error: unable to connect", PciAddress.parse(address)))

    def test_answers(self) -> None:
        unread = "it ended with 0, and its answer is not understood: "
        for level, status, output, expected, text in (
            (1, 0, diag(SOFTWARE), "PASS", ""),
            (2, 0, diag(SOFTWARE, MEMORY), "PASS", ""),
            (
                2,
                0,
                diag(SOFTWARE, ("Hardware", "pcie", [result("Warn", 1, "slow")])),
                "WARNING",
                "pcie: slow",
            ),
            (
                2,
                226,
                diag(SOFTWARE, ("Hardware", "memory", [result("Fail", 1, "bad row")])),
                "CRITICAL",
                "memory: bad row",
            ),
            (
                2,
                0,
                diag(SOFTWARE, ("Hardware", "memory", [result("Fail")])),
                "CRITICAL",
                "memory: Fail",
            ),
            (2, 0, diag(SOFTWARE), "UNKNOWN", "no test of the card was run; each was skipped"),
            (2, 0, PARTIAL, "UNKNOWN", "no test of the card was run; each was skipped"),
            (1, 0, diag(), "UNKNOWN", "no test of the card was run; each was skipped"),
            (2, 1, diag(SOFTWARE, MEMORY), "UNKNOWN", "it ended with 1 without a test that failed"),
            (
                2,
                0,
                diag(SOFTWARE, ("Hardware", "memory", [result("Pass", 0)])),
                "UNKNOWN",
                f"{unread}it is about GPU 0, not 1",
            ),
            (
                1,
                0,
                diag(("Deployment", "software", [result("Not Run")])),
                "UNKNOWN",
                f"{unread}the status Not Run",
            ),
            (1, 0, diag(SOFTWARE, runtime_error="no engine"), "UNKNOWN", f"{unread}no engine"),
            (
                1,
                0,
                diag(SOFTWARE, version="3.3.9"),
                "UNKNOWN",
                "DCGM 3.3.9 is none whose answers nova-gpu knows",
            ),
        ):
            with self.subTest(expected=text or expected, level=level):
                outcome = verdict.of_dcgm(status, output, 1, level)
                self.assertEqual((expected, text), (outcome.verdict.value, outcome.text))

    def test_what_a_failed_test_asks_for(self) -> None:
        for severities, expected in (
            ((6,), Repair.RESET),
            ((6, 2), Repair.SERVICE),
            ((1, 6, None), Repair.RESET),
            ((99,), None),
            (([], "6"), None),
            ((), None),
        ):
            bad = result("Fail")
            bad["warnings"] = [{"warning": "bad", "error_severity": n} for n in severities]
            answer = diag(SOFTWARE, ("Hardware", "memory", [bad]))
            outcome = verdict.of_dcgm(226, answer, 1, 2)
            self.assertEqual((Verdict.CRITICAL, expected), (outcome.verdict, outcome.asks))

    def test_no_piece_of_an_answer_sells(self) -> None:
        whole = diag(SOFTWARE, MEMORY)
        for end in range(len(whole)):
            self.assertFalse(verdict.of_dcgm(0, whole[:end], 1, 2).verdict.sells, whole[:end])
        for garbage in ("null", "[]", "{}", "7", '{"DCGM GPU Diagnostic": {}}'):
            self.assertFalse(verdict.of_dcgm(0, garbage, 1, 1).verdict.sells)
