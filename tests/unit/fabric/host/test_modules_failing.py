# SPDX-License-Identifier: Apache-2.0
"""Each system call on the file of a board's modules fails once, wherever it is made."""

from __future__ import annotations

from nova_gpu.fabric.host import modules
from tests.unit.host.state import test_files_failing
from tests.unit.host.state.test_files_failing import ONE, TWO, Kind


class ModulesTest(test_files_failing.FailingCallsTest):
    def kinds(self) -> dict[str, Kind]:
        return {
            "modules": Kind(
                lambda at: modules.keep(at / "m", [ONE, TWO], {ONE: 1, TWO: 2}),
                (lambda at: modules.keep(at / "m", [ONE, TWO], {ONE: 2, TWO: 1}),),
                lambda at: modules.completed(at / "m", [ONE, TWO], {}),
                {},  # NVML is asked
            )
        }
