# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
from unittest import mock

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.virt.delivery import bind_failures
from tests.fixtures import cards

CARD = cards.card("0000:3b:00.0")
OTHER = cards.card("0000:5e:00.0")
ERROR = exception.BindingFailed(str(CARD.address), "it is in use", "end that first", "X (pid 1)")


class UnboundTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "gpu-unbound")
        self.unbound = bind_failures.BindFailures(self.folder)
        self.log = self.useFixture(fixtures.FakeLogger())

    def reasons(self) -> list[str]:
        found = bind_failures.unavailable(self.folder, [CARD, OTHER])
        self.assertLessEqual(found.keys(), {CARD.address})
        return [str(*each) for each in found.values()]

    def test_until_it_is_bound(self) -> None:
        self.assertEqual([], self.reasons())
        self.unbound.add(CARD, ERROR)
        self.unbound.prune()
        self.assertEqual({CARD.address}, self.unbound.unavailable().keys())
        (reason,) = self.reasons()
        self.assertIn("for 5 minutes from then: it is in use: X (pid 1); end that first", reason)
        self.unbound.forget(OTHER.address)
        self.unbound.forget(CARD.address)
        self.assertEqual((set(), []), (self.unbound.unavailable().keys(), self.reasons()))

    def test_for_a_time(self) -> None:
        """And a new service tries at once."""
        self.unbound.add(CARD, ERROR)
        new = bind_failures.BindFailures(self.folder)
        new.prune()
        self.assertEqual((set(), []), (new.unavailable().keys(), self.reasons()))
        with mock.patch.object(bind_failures, "_RETRY_AFTER_S", 0.0):
            self.unbound.add(CARD, ERROR)
        self.assertEqual(set(), self.unbound.unavailable().keys())
        self.unbound.prune()
        self.assertEqual([], list(self.folder.iterdir()))

    def test_not_written_down(self) -> None:
        """Only nova-gpu list does not know it then."""
        self.folder.write_text("no folder")
        self.unbound.add(CARD, ERROR)
        self.assertEqual({CARD.address}, self.unbound.unavailable().keys())
        self.assertIn("nova-gpu list does not show the failed binding of GPU", self.log.output)
        self.unbound.prune()
        self.assertEqual([], self.reasons())
        self.unbound.forget(CARD.address)
        self.assertEqual(set(), self.unbound.unavailable().keys())
