# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu import rest


class CleanRefusalsTest(unittest.TestCase):
    def said(self, error: Exception) -> Exception:
        with self.assertRaises(exceptions.CommandError) as caught, rest.clean_refusals("Nova"):
            raise error
        return caught.exception

    def test_what_policy_does_not_allow(self) -> None:
        found = self.said(sdk_exc.ForbiddenException("403", details="Policy doesn't allow it"))
        self.assertIsInstance(found, rest.Refused)
        expected = "Nova refused this request: it is for administrators (Policy doesn't allow it)"
        self.assertEqual(expected, str(found))

    def test_all_else(self) -> None:
        for error in (sdk_exc.SDKException("no\n answer"), ks_exc.ConnectFailure("no  answer")):
            found = self.said(error)
            self.assertNotIsInstance(found, rest.Refused)
            self.assertEqual("Nova: no answer", str(found))
