# SPDX-License-Identifier: Apache-2.0
"""Which GPUs an instance gets, and who gets none."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.scheduler import request_filter

from nova_gpu.conf import CONF
from nova_gpu.scheduler.request_filter import gpu_candidates_filter, gpu_request_filter
from tests.fixtures import cdi, hosts
from tests.functional import alone, base

KEPLER = base.SECOND_SOCKET


class ClaimsTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_the_blueprints_flavor(self) -> None:
        server = self.boot(self.flavor(**base.BLUEPRINT))
        self.assertGPUs(server, base.FIRST_SOCKET[:2])
        self.assertInventory(used=2)

    def test_multi_create(self) -> None:
        servers = self.boot_several(self.gpu_flavor(2), 3)
        got = sorted(self.recorded(server) for server in servers)
        for server in servers:
            self.assertGPUs(server, self.recorded(server))
        self.assertEqual(6, len(set().union(*got)))
        for pair in got:
            self.assertTrue(set(pair) <= set(base.FIRST_SOCKET) or set(pair) <= set(KEPLER), got)
        self.assertInventory(used=6)


class OneHostTest(alone.Alone, base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_gpus_of_one_socket_are_kept_together(self) -> None:
        servers = [self.boot(self.gpu_flavor(gpus)) for gpus in (1, 4, 2)]
        expected = (base.FIRST_SOCKET[:1], base.SECOND_SOCKET, base.FIRST_SOCKET[1:3])
        for server, addresses in zip(servers, expected, strict=True):
            self.assertGPUs(server, addresses)
        self.assertInventory(used=7)

    def test_an_instance_without_gpus_gets_none(self) -> None:
        server = self.boot(self.flavor())
        self.assertGPUs(server, [])
        # Its network is its own all the same.
        self.assertIsNotNone(self.domain(server).find("features/privnet"))


class TwoArchitecturesTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host(machine="two-architectures")

    def test_one_instance_never_gets_two_architectures(self) -> None:
        self.boot_refused(self.gpu_flavor(5))
        server = self.boot(self.gpu_flavor(4))
        # Placement lists the candidates of one host in no order.
        self.assertIn(tuple(self.recorded(server)), (base.FIRST_SOCKET, KEPLER))
        self.assertGPUs(server, self.recorded(server))


class WithoutOurFilterTest(base.GPUServersTestBase):
    """A scheduler that was not told of GPUs."""

    ADDITIONAL_FILTERS = ()

    def _setup_scheduler_service(self) -> Any:
        ours = (gpu_request_filter, gpu_candidates_filter)
        stock = [each for each in request_filter.ALL_REQUEST_FILTERS if each not in ours]
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

    def test_made_before_the_driver_was_there(self) -> None:
        """Its guest goes on without GPUs, and has what its flavor asks for from its next start."""
        self.flags(compute_driver="libvirt.LibvirtDriver")
        maps = {"uid_maps": CONF.libvirt.uid_maps, "gid_maps": CONF.libvirt.gid_maps}
        # With them Nova's own driver starts no container at all.
        self.flags(uid_maps=[], gid_maps=[], group="libvirt")
        self.start_host()
        self.server = self.boot(self.gpu_flavor(2))
        self.flags(compute_driver="gpu.GPULibvirtDriver")
        self.flags(**maps, group="libvirt")
        self.restart_host("host1")
        self.assertInventory(used=0)
        self._reboot_server(self.server, hard=True)
        self.assertInventory(used=2)
        self.assertGPUs(self.server, self.recorded(self.server))
        self._delete_server(self.server)


class OldFilesTest(base.GPUServersTestBase):
    """Hosts whose CDI files are of the driver before the upgrade, and one whose guests start"""

    def prepare(self, host: hosts.Host) -> None:
        if self.hosts["host1"] is host or len(self.hosts) == 2:
            document = cdi.nvidia(host.root / "driver", range(len(base.ALL)))
            document["containerEdits"]["mounts"][0]["hostPath"] += ".old"
            cdi.save(host.roots.cdi_spec_dirs[0] / "nvidia.yaml", document)

    def test_that_they_cost_no_attempt(self) -> None:
        for name in ("host1", "host2", "host3"):
            self.start_host(name)
        for gpus in range(1, 4):
            self.assertGPUs(self.boot(self.gpu_flavor(1)), [base.ALL[gpus - 1]], "host3")
        self.assertEqual({}, {**self.groups("host1"), **self.groups("host2")})
        self.assertIn("as after every driver upgrade", self.log())
