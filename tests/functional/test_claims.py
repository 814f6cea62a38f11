# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an instance gets, and who gets none."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.scheduler import request_filter

from nova_gpu.scheduler.request_filter import gpu_candidates_filter, gpu_request_filter
from tests.functional import base


class ClaimsTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_the_blueprints_flavor(self) -> None:
        server = self.boot(self.flavor(**base.BLUEPRINT))
        self.assertGPUs(server, base.FIRST_SOCKET[:2])
        plain = self.boot(self.flavor())
        self.assertGPUs(plain, [])
        # Its network is its own all the same.
        self.assertIsNotNone(self.domain(plain).find("features/privnet"))
        self.assertInventory(used=2)

    def test_multi_create(self) -> None:
        servers = self.boot_several(self.gpu_flavor(2), 3)
        got = sorted(self.recorded(server) for server in servers)
        for server in servers:
            self.assertGPUs(server, self.recorded(server))
        self.assertEqual(6, len(set().union(*got)))
        for pair in got:
            self.assertTrue(
                set(pair) <= set(base.FIRST_SOCKET) or set(pair) <= set(base.SECOND_SOCKET), got
            )
        self.assertInventory(used=6)


class HangingLibraryTest(base.GPUServersTestBase):
    def test_guests_start_without_its_answers(self) -> None:
        """Where Nova runs on eventlet, the time-out of a process is an error of another class."""
        self.flags(nvml=True, nvml_timeout=1, group="gpu")
        hang = "import time; time.sleep(1000)"
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml._PROBE", hang))
        self.start_host()
        server = self.boot(self.gpu_flavor(2))
        self.restart_host("host1")
        self.assertGPUs(server, base.FIRST_SOCKET[:2])
        self.assertIn("([gpu]nvml_timeout) and was killed", self.log())
        self.assertNotIn("This is a bug", self.log())
        self.assertInventory(used=2)


class WithoutOurFilterTest(base.GPUServersTestBase):
    """A scheduler that was not told of GPUs."""

    ADDITIONAL_FILTERS = ()

    def _setup_scheduler_service(self) -> Any:
        ours = (gpu_request_filter, gpu_candidates_filter)
        stock = [
            function for function in request_filter.ALL_REQUEST_FILTERS if function not in ours
        ]
        name = "nova.scheduler.request_filter.ALL_REQUEST_FILTERS"
        self.useFixture(fixtures.MonkeyPatch(name, stock))
        return super()._setup_scheduler_service()

    def test_what_is_refused_at_spawn(self) -> None:
        self.start_host()
        for words, part in (
            ({"gpus": "= 2"}, "GPUFilter"),
            ({"gpus": "= 1", "gpu_arch": "s== kepler", "resources:PGPU": "1"}, "kepler"),
            ({"gpus": "= 3", "resources:PGPU": "2"}, "3"),
        ):
            with self.subTest(words):
                self.assertIn(part, self.boot_refused(self.flavor(**words)))
                self.assertInventory(used=0)
        # And what they were to have is free at once.
        self.assertGPUs(self.boot(self.flavor(**{"resources:PGPU": "8"})), base.ALL)
