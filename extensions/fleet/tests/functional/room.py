# SPDX-License-Identifier: Apache-2.0
"""Two hosts, of which one would have room for a large instance if a small one moved away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fixtures
from openstack.compute.v2 import _proxy

from osc_gpu_fleet import retries
from tests.functional.shown import ShownTestBase


class RoomTestBase(ShownTestBase):
    """``source``: the host from which an instance moves next."""

    source = "host1"

    def setUp(self) -> None:
        super().setUp()
        # What is of a host alone takes all eight cards of host1.
        self.flavor("eight", gpus="8")
        yields = self.flavor(**{"gpus": "= 1", "gpu_arch": "s== fermi", "gpu:move": "cold"})
        self.server = self.boot(yields, host="host1", name="yields")
        self.useFixture(fixtures.MockPatchObject(retries, "POLL_S", 0.1))
        confirm: Callable[..., None] = _proxy.Proxy.confirm_server_resize

        def at_the_source(proxy: Any, server: Any) -> None:
            with self.on(self.source):  # as for tests.functional.base.GPUServersTestBase.confirm
                confirm(proxy, server)

        self.useFixture(
            fixtures.MockPatchObject(_proxy.Proxy, "confirm_server_resize", at_the_source)
        )
