# SPDX-License-Identifier: Apache-2.0
"""Each system call on the file of a board's modules fails once, wherever it is made."""

from __future__ import annotations

from nova_gpu.fabric.host import modules
from tests.fixtures.bases.files_failing import ONE, TWO, FailingCallsTestCase, Kind


class ModulesTest(FailingCallsTestCase):
    def test_modules(self) -> None:
        kind = Kind(
            lambda at: modules.keep(at / "m", [ONE, TWO], {ONE: 1, TWO: 2}),
            (lambda at: modules.keep(at / "m", [ONE, TWO], {ONE: 2, TWO: 1}),),
            lambda at: modules.completed(at / "m", [ONE, TWO], {}),
            {},  # NVML is asked
        )
        self.check_changes({"modules": kind})
        self.check_reads({"modules": kind})
