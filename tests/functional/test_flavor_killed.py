# SPDX-License-Identifier: Apache-2.0
"""The command that makes a flavor, killed between its writes, and repeated."""

from __future__ import annotations

from typing import Any

from osc_lib import exceptions

from osc_gpu import flavors
from tests.functional import base, killed, sdk
from tests.functional.killed import When


class FlavorTest(base.GPUServersTestBase):
    def create(self) -> Any:
        return sdk.run(self, flavors.CreateFlavor, "made", "--gpus", "1")

    def test_create(self) -> None:
        with killed.interrupted(1, When.AFTER, killed.kill):
            self.assertRaises(killed.Killed, self.create)
        refused = str(self.assertRaises(exceptions.CommandError, self.create))
        self.assertRegex(
            refused, "a flavor made without properties .* run openstack flavor delete "
        )
        (made,) = (flavor for flavor in self.api.get_flavors() if flavor["name"] == "made")
        self.api.delete_flavor(made["id"])
        self.create()
        self.assertIn("Nova: ", str(self.assertRaises(exceptions.CommandError, self.create)))
