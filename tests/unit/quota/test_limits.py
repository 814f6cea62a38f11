# SPDX-License-Identifier: Apache-2.0
"""What is judged; tests/functional/test_quota.py has whole starts."""

from __future__ import annotations

from unittest import mock

from nova import exception as nova_exception
from nova.limit import utils as limit_utils
from oslo_config import fixture as config_fixture
from oslo_limit import fixture as limit_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.quota import limits


class LimitsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.config(endpoint_id="nova", group="oslo_limit")
        self.useFixture(limit_fixture.LimitFixture({"class:PGPU": 3}, {}))

    def judge(self, used: int | Exception, more: int, **others: int) -> None:
        placement = mock.Mock(spec=["get_usages_counts_for_limits"])
        answer = {"PGPU": used} if isinstance(used, int) else used
        placement.get_usages_counts_for_limits.side_effect = [answer]
        limits.refuse_over(placement, "a-project", {"PGPU": more, **others}, "nova-compute")

    def test_what_fits(self) -> None:
        self.judge(1, 2)
        self.judge(3, 0)
        self.config(driver="nova.quota.DbQuotaDriver", group="quota")
        self.judge(9, 2)

    def test_a_limit_that_is_not_registered(self) -> None:
        """Nova does not enforce it, unless an option names it; 2024.1 takes it as 0."""
        model = {"CUSTOM_GPU_MODEL_H100": 1}
        registered = [mock.Mock(resource_name="class:PGPU")]
        client = mock.Mock(**{"return_value.registered_limits.return_value": registered})
        with mock.patch("nova.limit.utils._identity_client", client, create=True):
            if hasattr(limit_utils, "should_enforce"):
                self.judge(1, 1, **model)
                refused = self.assertRaises(exception.QuotaExceeded, self.judge, 3, 1, **model)
                self.assertNotIn("MODEL", str(refused))
                self.config(
                    unified_limits_resource_list=[f"class:{next(iter(model))}"], group="quota"
                )
            refused = self.assertRaises(exception.QuotaExceeded, self.judge, 1, 1, **model)
            self.assertIn("quota of class:CUSTOM_GPU_MODEL_H100 is 0, 0 in use", str(refused))

    def test_what_is_over_or_unknown(self) -> None:
        lost = nova_exception.UsagesRetrievalFailed("a-project")
        # Keystone's other model, which oslo.limit does not know: Nova's API refuses it, too.
        two_levels = ValueError("enforcement model strict_two_level is not supported")
        with mock.patch("oslo_limit.limit.Enforcer", side_effect=two_levels):
            refused = self.assertRaises(exception.QuotaExceeded, self.judge, 0, 1)
        self.assertIn(str(two_levels), str(refused))
        self.assertNotIn("model", refused.user_text)
        for used, more, message in (
            (2, 2, "quota of class:PGPU is 3, 2 in use, and 2 more asked for"),
            (4, 0, "quota of class:PGPU is 3, 4 in use, and 0 more asked for"),
            (lost, 2, "the limits of its project cannot be read"),
        ):
            refused = self.assertRaises(exception.QuotaExceeded, self.judge, used, more)
            self.assertIn(message, str(refused))
