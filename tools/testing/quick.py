# SPDX-License-Identifier: Apache-2.0
"""What ``tools/test quick`` runs: what finds most for its time, for use before each commit."""

from __future__ import annotations

SUITES = ("style", "types", "unit", "functional")
# Of the functional tests, the classes that together run most of nova_gpu for the seconds they take.
# Their names are looked for by tests/unit/tools/test_quick.py.
FUNCTIONAL = (
    "test_claims.ClaimsTest",
    "test_flavors.ReasonsTest",
    "test_kvm_binding.LateBindingTest",
    "test_mig.RoadTest",
    "test_moves.MovesTest",
    "test_refusals.ContainerRefusalsTest",
    "test_verify.GuestsTest",
    "test_vgpu_operations.MediatedTest",
    "test_xids.XidsTest",
)
# Of the unit tests, those left out: whole programs and clouds are started by them.
UNIT_LEFT_OUT = ("tests.unit.benchmarks", "tests.unit.fuzz")
