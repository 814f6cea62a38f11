# SPDX-License-Identifier: Apache-2.0
"""The isolation of containers, on a host with cgroup v2."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from nova_gpu.conf import CONF
from tests.vfio import base, cloud, images

Options = Mapping[str, Mapping[str, Any]]

_ID_MAPS = ["0:100000:65536"]
# No driver is behind a node: what the control groups let through comes as far as that.
_ITS_OWN, _REFUSED = errno.ENXIO, errno.EPERM


class ContainersTest(base.VFIOTestCase):
    """On the same host and in the same cloud, whose nova-compute serves containers meanwhile."""

    def setUp(self) -> None:
        super().setUp()
        self.assertTrue(self.host.read("/sys/fs/cgroup/cgroup.controllers"), "no cgroup v2")
        self.addCleanup(self._end)
        self._before = {
            group: {name: CONF[group][name] for name in cloud.Cloud.OPTIONS[group]}
            for group in ("libvirt", "gpu")
        }
        beside, gpus = self.cloud.containers.begin()
        guests = {
            "virt_type": "lxc",
            "connection_uri": "lxc:///",
            "cpu_mode": None,
            "images_type": "raw",
            "uid_maps": _ID_MAPS,
            "gid_maps": _ID_MAPS,
        }
        self._serve(beside, {"libvirt": guests, "gpu": {**gpus, "nvml": False}})

    def _serve(self, beside: int | None, options: Options) -> None:
        for group, values in options.items():
            self.cloud.flags(**values, group=group)
        self.cloud.beside = beside
        self.forget_groups()

    def _end(self) -> None:
        self.cloud._delete_everything()
        left = self.cloud.containers.end()
        self._serve(None, self._before)
        self.assertEqual([], left)

    def boot(self) -> dict[str, Any]:
        flavor = self.cloud.flavor(gpus="= 1", hypervisor="s== LXC")
        return self.cloud.boot(flavor, image=images.CONTAINER)

    def test_isolation(self) -> None:
        domain = self.cloud.domain(self.boot())
        self.assertEqual([_ITS_OWN, _REFUSED], self.cloud.containers.opened(domain))
        attempts = self.cloud.containers.attempts(domain)
        self.assertGreater(len(attempts), 15)
        self.assertEqual([], [attempt for attempt in attempts if not attempt.refused])

    def test_reached(self) -> None:
        """As in tests/lxc, whose control groups are of version 1: here a program judges devices."""
        servers = [self.boot(), self.boot()]
        domains = [self.cloud.domain(server) for server in servers]
        own = [[_ITS_OWN, _REFUSED], [_REFUSED, _ITS_OWN]]
        self.assertEqual(own, [self.cloud.containers.opened(domain) for domain in domains])
        self.cloud.containers.exchange()
        self.cloud._run_periodics()
        self.assertEqual(own, [self.cloud.containers.opened(domain) for domain in domains])
        for server in servers:
            self.cloud._stop_server(server)
        for server in servers:
            self.cloud._start_server(server)
        self.assertEqual(own[::-1], [self.cloud.containers.opened(domain) for domain in domains])
