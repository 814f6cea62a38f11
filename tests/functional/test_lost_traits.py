# SPDX-License-Identifier: Apache-2.0
"""The scheduler's write of the trait of drained hosts, lost, without an answer, refused, repeated.

It is the scheduler's only write: Placement refuses queries with a trait that it does not know.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fixtures
from nova.scheduler.client import report

from nova_gpu.core import names
from tests.functional import base, test_lost_writes
from tests.functional.test_lost_writes import Write, failing

_NO_ANSWER, _LOST, _TWICE = test_lost_writes.FAILURES
_URL = f"/traits/{names.DRAINED}"


def _is_trait(client: Any, url: str, *args: Any, **kwargs: Any) -> bool:
    return url == _URL


def _refused(write: Write, *args: Any, **kwargs: Any) -> Any:
    return SimpleNamespace(status_code=503, text="Service Unavailable")


def _done_and_refused(write: Write, *args: Any, **kwargs: Any) -> Any:
    write(*args, **kwargs)
    return SimpleNamespace(status_code=504, text="Gateway Timeout")


# The failures, and whether the trait exists after each
FAILURES = {
    _NO_ANSWER: True,
    _LOST: False,
    _TWICE: True,
    _refused: False,
    _done_and_refused: True,
}


class LostTraitsTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        writes = {"trait": (report.SchedulerReportClient, "put", _is_trait)}
        self.useFixture(fixtures.MockPatchObject(test_lost_writes, "WRITES", writes))
        super().setUp()
        self.start_host()
        self.all = self.gpu_flavor(len(base.ALL))

    def boot_with(self, failure: Any, expected_state: str) -> str:
        """Return the fault of the server during whose scheduling the write fails."""
        with failing("trait", failure) as writes:
            server = self.boot(self.all, expected_state=expected_state)
        self.assertEqual(["trait"], writes)
        fault = str(self._show_server(server).get("fault", {}).get("message", ""))
        self._delete_server(server)
        return fault

    def assertNextStarts(self) -> None:
        self.assertInventory(used=0)
        self._delete_server(self.boot(self.all))

    def test_a_new_scheduler(self) -> None:
        """It makes sure that the trait exists before its first query, or refuses the request."""
        for failure in FAILURES:
            with self.subTest(failure=failure.__name__):
                report.PLACEMENTCLIENT = None
                does_answer = failure is _TWICE
                fault = self.boot_with(failure, "ACTIVE" if does_answer else "ERROR")
                if not does_answer:
                    self.assertIn("Placement does not say which GPUs there are", fault)
                self.assertNextStarts()

    def test_a_trait_that_is_deleted(self) -> None:
        """An operator may do that at any time; no host is drained then."""
        self.assertNextStarts()
        for failure, exists in FAILURES.items():
            with self.subTest(failure=failure.__name__):
                self.placement.delete(_URL, version="1.14")
                fault = self.boot_with(failure, "ACTIVE" if exists else "ERROR")
                self.assertNotIn("drained", fault)
                self.assertNextStarts()
