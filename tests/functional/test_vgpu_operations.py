# SPDX-License-Identifier: Apache-2.0
"""An instance with vGPUs through what can be done to it, and many at once."""

from __future__ import annotations

import concurrent.futures
import pathlib

from nova.virt.libvirt import utils as libvirt_utils

from tests.functional import divided, kvm
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, slots


class OperationsTest(divided.DividedServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.server = self.boot(self.of_type(64, 2))
        self.mine = slots(FIRST, 64, 0, 1)

    def assertAsBefore(self) -> None:
        self.assertVGPUs(self.server, self.mine)
        self.assertEqual(2, len(self.kernels["host1"].made))

    def test_what_its_guest_comes_back_from(self) -> None:
        self.flags(wait_soft_reboot_seconds=1, group="libvirt")
        self._reboot_server(self.server)
        self.assertAsBefore()
        self._rebuild_server(self.server, kvm.IMAGE)
        self.assertAsBefore()
        folder = libvirt_utils.get_instance_path(self.instance(self.server))
        pathlib.Path(folder).mkdir(exist_ok=True)
        rescue = {"rescue": {"rescue_image_ref": kvm.IMAGE}}
        self.api.post_server_action(self.server["id"], rescue)
        self._wait_for_state_change(self.server, "RESCUE")
        self.assertEqual(2, len(self.domain(self.server).xpath("devices/hostdev[@type='mdev']")))
        self.api.post_server_action(self.server["id"], {"unrescue": None})
        self._wait_for_state_change(self.server, "ACTIVE")
        self.assertAsBefore()
        self.api.post_server_action(self.server["id"], {"pause": None})
        self._wait_for_state_change(self.server, "PAUSED")
        self.api.post_server_action(self.server["id"], {"unpause": None})
        self._wait_for_state_change(self.server, "ACTIVE")
        self.assertAsBefore()
        self.assertEqual(2, len(self.kernels["host1"].done))  # what is there is not made again

    def test_moves(self) -> None:
        self.start_host("host2")
        self._migrate_server(self.server)
        self.assertEqual(2, len(self.kernels["host1"].made))
        self.confirm(self.server, "host1")
        self.assertVGPUs(self.server, self.mine, "host2")
        self.assertEqual([], self.kernels["host1"].made)
        self.force_down("host2")
        self._evacuate_server(self.server, expected_host="host1")
        self._start_server(self.server)
        self.assertEqual(self.mine, self.recorded(self.server))
        self.bring_back("host2")
        self.assertEqual([], self.kernels["host2"].made)
        self.assertVGPUs(self.server, self.mine, "host1")

    def test_delete_while_the_host_is_down(self) -> None:
        """Its guest runs on: its room is nobody else's before Nova's periodic task has ended it."""
        self.force_down("host1")
        self._delete_server(self.server)
        self.bring_back("host1")
        self.period()
        self.assertEqual(2, len(self.kernels["host1"].made))
        self.assertEqual((8, 2, 0), self.inventories()[64])
        self.assertVGPUs(self.boot(self.of_type(66)), slots(SECOND, 66, 0))
        self.flags(running_deleted_instance_timeout=0)
        with self.on("host1"):
            self.computes["host1"].manager._cleanup_running_deleted_instances(self.context)
        self.assertEqual(1, len(self.kernels["host1"].made))


class ManyTest(divided.DividedServersTestBase):
    CAST_AS_CALL = False

    def test_twenty_at_once_share_none(self) -> None:
        """Of which there is room for sixteen."""
        self.flags(instances=-1, cores=-1, ram=-1, group="quota")
        self.start_host()
        flavor = self.of_type(63)
        requests = [self._build_server(flavor_id=flavor, networks="none") for _ in range(20)]
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            servers = list(pool.map(lambda r: self.api.post_server({"server": r}), requests))
        self._wait_for_assert(lambda: self.assertTrue(self._are_settled(servers)), 240, 0.5)
        active = [each for each in servers if self._show_server(each)["status"] == "ACTIVE"]
        self.assertEqual(16, len(active))
        held = [slot for server in active for slot in self.recorded(server)]
        expected = slots(FIRST, 63, *range(8)) + slots(SECOND, 63, *range(8))
        self.assertEqual(sorted(expected), sorted(held))
        self.assertEqual(16, len(self.kernels["host1"].made))
        for server in servers:
            self.api.delete_server(server["id"])
        self._wait_for_assert(lambda: self.assertEqual([], self._servers()), 240, 0.5)
        self.assertEqual([], self.kernels["host1"].made)

    def _are_settled(self, servers: list[Server]) -> bool:
        return all(self._show_server(each)["status"] in ("ACTIVE", "ERROR") for each in servers)
