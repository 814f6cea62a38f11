# SPDX-License-Identifier: Apache-2.0
"""What a compute host offers, and to whom: lost records, a host that has just booted."""

from __future__ import annotations

import os
import pathlib
import subprocess

import fixtures
from nova import context as nova_context

from lab.cloud import guest
from tests.lxc import base, place

# What nvidia-modprobe does: "-c N" makes a node of the driver, and after "-u" one of nvidia-uvm.
_MODPROBE = """\
#!/bin/sh
echo "$@" >>{log}
make() {{ [ -e /dev/$1 ] || mknod -m 666 /dev/$1 c $2 $3; }}
uvm=
while [ $# -gt 0 ]; do
    case $1$uvm in
    -u) uvm=yes ;;
    -cyes) make nvidia-uvm 510 $2; make nvidia-uvm-tools 510 $(($2 + 1)); shift ;;
    -c) [ $2 = 255 ] && name=nvidiactl || name=nvidia$2; make $name 195 $2; shift ;;
    esac
    shift
done
"""
# How the ways begin that lead round the device cgroup.
_BY_CGROUP = ("mount cgroup", "devices.allow", "join another group")


class LostRecordTest(base.LXCTestCase):
    def test_deleted_while_the_host_was_down(self) -> None:
        """Its domain goes on running: the next tenant gets other cards."""
        zombie = self.boot_with(2)
        domain = self.domain(zombie)
        self.stop_compute()
        service = self.admin_api.get_services(binary="nova-compute")[0]
        self.admin_api.put_service(service["id"], {"forced_down": True})
        self.delete(zombie)
        self.assertEqual(0, self.usage())

        self.admin_api.put_service(service["id"], {"forced_down": False})
        self.restart_compute()

        self.assertIn(domain, self._lv.domains())
        self.assertEqual(2, self.reserved())
        self.assertGPUs(self.boot_with(1), {2})
        self._reap()
        self.assertNotIn(domain, self._lv.domains())
        self._run_periodics()
        self.assertEqual(0, self.reserved())
        self.assertGPUs(self.boot_with(2), {0, 1})

    def _reap(self) -> None:
        """Nova's own periodic task for it, which runs every half an hour."""
        self.flags(running_deleted_instance_timeout=0)
        manager = self.computes["compute"].manager
        manager._cleanup_running_deleted_instances(nova_context.get_admin_context())


class HostBootTest(base.LXCTestCase):
    def test_nodes_are_made_before_guests_resume(self) -> None:
        server = self.boot_with(2)
        self.assertGPUs(server, {0, 1})
        domain = self.domain(server)
        self.stop_compute()
        self._shut_down_host(domain)
        log = self._vendors_tool()
        self.flags(resume_guests_state_on_host_boot=True)

        self.restart_compute()

        self.assertIn(domain, self._lv.virsh("list", "--name").split())
        self.assertGPUs(server, {0, 1})
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])
        self.assertEqual((2, 0), (self.usage(), self.reserved()))
        lines = log.read_text().splitlines()
        self.assertEqual(sorted(set(lines)), sorted(lines), "asked again for what is there")

    def _shut_down_host(self, domain: str) -> None:
        """Guests, their mounts, and the nodes that the vendor's tool had made, are gone."""
        self._lv.virsh("destroy", domain)
        for root in self._state.glob("instances/*/rootfs"):
            subprocess.run(["umount", str(root)], check=True)
        dev = pathlib.Path("/dev")
        for node in [*dev.glob("nvidia*"), *dev.glob("nvidia-caps/*")]:
            if node.is_dir():
                continue
            status = node.stat()
            node.unlink()
            self.addCleanup(_make_node, node, status.st_mode, status.st_rdev)

    def _vendors_tool(self) -> pathlib.Path:
        folder, log = self._state / "bin", self._state / "modprobe.log"
        folder.mkdir()
        tool = folder / "nvidia-modprobe"
        tool.write_text(_MODPROBE.format(log=log))
        tool.chmod(0o755)
        path = f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.useFixture(fixtures.EnvironmentVariable("PATH", path))
        return log


def _make_node(path: pathlib.Path, mode: int, device: int) -> None:
    if not path.exists():
        os.mknod(path, mode, device)
        path.chmod(mode & 0o777)


class PrivilegedTest(base.LXCTestCase):
    """Without user id maps root in the guest is root on the host."""

    UID_MAPS = ()

    def test_no_card_is_offered(self) -> None:
        self.assertFalse(self.has_gpu_provider())
        self.assertIn("no host offers GPUs", self.refusal(self.flavor(gpus="1")))

        self.boot(self.flavor())


class PrivilegedAllowedTest(base.LXCTestCase):
    UID_MAPS = ()

    def prepare_host(self) -> None:
        self.flags(allow_privileged_containers=True, group="gpu")

    def test_the_operator_may_say_so(self) -> None:
        server = self.boot_with(2)

        self.assertGPUs(server, {0, 1})
        # What is refused to others is open here: that it is tried at all is seen here only.
        tried = guest.escapes(self._lv, self.domain(server), place.node(2), place.GPUS[2])
        by_cgroup = [attempt for attempt in tried if attempt.way.startswith(_BY_CGROUP)]
        self.assertGreaterEqual(len(by_cgroup), 2)
        self.assertEqual([], [attempt for attempt in by_cgroup if attempt.refused])


class StockTest(base.LXCTestCase):
    """Why these actions are refused: where this fails Nova has learnt them."""

    MACHINE = "cpu-only"
    # Nova itself gives a container no network namespace, and none starts with id maps and without.
    UID_MAPS = ()

    def test_stock_nova_ends_in_error(self) -> None:
        for action in ("suspend", "rescue"):
            server = self.boot(self.flavor())
            self.api.post_server_action(server["id"], {action: None})
            self._wait_for_server_parameter(server, {"status": "ERROR"})
