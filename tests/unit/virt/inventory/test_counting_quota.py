# SPDX-License-Identifier: Apache-2.0
"""What is judged, and by what; tests/functional/test_quota.py has whole starts."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from unittest import mock

from nova import exception as nova_exception
from oslo_config import fixture as config_fixture
from oslo_limit import fixture as limit_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.virt.inventory import counting

PROJECT = "a-project"
TWO = {"gpus": "2", "resources:PGPU": "2"}


class QuotaTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.config(endpoint_id="nova", group="oslo_limit")
        limits = {"class:PGPU": 3, "class:VGPU": -1}
        self.useFixture(limit_fixture.LimitFixture(limits, {}))

    def judge(
        self, used: int | Exception, specs: Mapping[str, str], *, has_them: bool = False
    ) -> None:
        placement = mock.Mock(spec=["get_usages_counts_for_limits"])
        answer = {"PGPU": used} if isinstance(used, int) else used
        placement.get_usages_counts_for_limits.side_effect = [answer]
        instance = SimpleNamespace(project_id=PROJECT)
        deltas = request.of(specs).counts(by_model=False)
        counting.refuse_over(placement, instance, deltas, has_them=has_them)

    def test_what_fits(self) -> None:
        self.judge(1, TWO)
        self.judge(3, TWO, has_them=True)
        self.judge(9, {"vgpus": "1", "resources:VGPU": "1"})
        self.config(driver="nova.quota.DbQuotaDriver", group="quota")
        self.judge(9, TWO)

    def test_what_is_over(self) -> None:
        lost = nova_exception.UsagesRetrievalFailed(PROJECT)
        for used, specs, has_them, said in (
            (2, TWO, False, "quota of class:PGPU is 3, 2 in use, and 2 more asked for"),
            (2, {"gpus": "2"}, False, "quota of class:PGPU is 3, 2 in use, and 2 more asked for"),
            (4, TWO, True, "quota of class:PGPU is 3, 4 in use, and 0 more asked for"),
            (lost, TWO, False, "the limits of its project cannot be read"),
        ):
            refused = self.assertRaises(
                exception.QuotaExceeded, self.judge, used, specs, has_them=has_them
            )
            self.assertIn(said, str(refused))
            # No one makes room for it in its place.
            self.assertNotIn(exception.GAVE_BACK, str(refused))
