# SPDX-License-Identifier: Apache-2.0
"""Texts that a tenant writes into the metadata of an instance, against what reads them."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from oslo_utils import timeutils

from osc_gpu.fleet import preemption_candidates
from tests.unit.fuzz import base
from tests.unit.osc_gpu.fleet import test_preemption_candidates

_NUMBER = st.sampled_from(
    ["0000", "0001", "9999", "2026", "00", "01", "12", "13", "31", "24", "60"]
)
# Times as somebody writes them who wants to break what reads them
_TIMES = st.tuples(
    *(_NUMBER, st.sampled_from("-/ "), _NUMBER, st.sampled_from("-"), _NUMBER),
    *(st.sampled_from("T "), _NUMBER, st.just(":"), _NUMBER, st.just(":"), _NUMBER),
    st.sampled_from(["Z", "z", "", "+00:00", "-01:00", "+23:59", "-99:99", ".5Z", "Z\n"]),
).map("".join)
METADATA = st.dictionaries(
    st.sampled_from(["gpu:preempt_at", "gpu:preempt_for"]) | base.TEXT,
    _TIMES | base.TEXT | base.LONG,
    max_size=4,
)


class MetadataTest(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        timeutils.set_time_override(test_preemption_candidates.NOW)
        self.addCleanup(timeutils.clear_time_override)

    @base.fuzzed(metadata=METADATA, name=base.TEXT)
    def test_the_planner(self, metadata: dict[str, str], name: str) -> None:
        """Of two instances; the other's turn comes, whatever is written on the one."""
        one = test_preemption_candidates.server("a", metadata=metadata, name=name)
        other = test_preemption_candidates.server("b")
        test = test_preemption_candidates.PreemptibleTest("test_what_was_told")
        test.notices = {}
        found = test.read(one, other)
        self.assertEqual({"a", "b"}, found.by_uuid.keys())
        self.assertIsNone(found.by_uuid["b"].due)
        due = found.by_uuid["a"].due
        notice = datetime.timedelta(seconds=test_preemption_candidates.NOTICE_S)
        if due is not None:
            self.assertLessEqual(due, test_preemption_candidates.NOW + notice)
        self.assertEqual({"a", "b"}, found.costs.keys())
        nobody = SimpleNamespace(compute=SimpleNamespace(get=_not_found))
        for each in preemption_candidates.takers(nobody, one):
            self.assertTrue(each.isprintable(), repr(each))


def _not_found(*_: Any, **__: Any) -> Any:
    return SimpleNamespace(status_code=404)
