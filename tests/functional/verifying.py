# SPDX-License-Identifier: Apache-2.0
"""A host in which ``nova-gpu verify`` looks for differences."""

from __future__ import annotations

from nova_gpu.cmd import verify as command
from nova_gpu.virt.verify.sources import Conflict
from tests.functional import base


class Verifying(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.driver = self.computes["host1"].driver

    def assertFound(self, *expected: tuple[Conflict, str]) -> None:
        verdict = self.judge()
        differences = [(difference.kind, difference.subject) for difference in verdict.differences]
        self.assertEqual(sorted(expected), sorted(differences), command.text(verdict))
        self.assertEqual((), verdict.unread)
        self.assertEqual(1 if expected else 0, verdict.status)

    def assertRepaired(self) -> None:
        verdict = self.judge(mend=True)
        self.assertEqual([None], list(verdict.repaired.values()), command.text(verdict))
        self.assertEqual(0, verdict.status)
        self.assertFound()
