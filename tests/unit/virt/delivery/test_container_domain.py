# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import types
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.compute import power_state
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.virt.delivery import container_domain

# An escape sequence, a line feed and a byte that is no UTF-8
_UUID = "6f70656e-7374-4163-8b20-342065766572"


class InUseTest(base.BaseTestCase):
    def test_while_the_guest_runs(self) -> None:
        """And not after a start that failed"""
        states = (power_state.RUNNING, power_state.SHUTDOWN, power_state.CRASHED)
        gone = nova_exception.InstanceNotFound(instance_id=_UUID)
        driver = mock.Mock(spec=["get_info"])
        driver.get_info.side_effect = [*(mock.Mock(state=state) for state in states), gone]
        in_use = [container_domain.is_in_use(driver, mock.Mock(uuid=_UUID)) for _ in range(4)]
        self.assertEqual([True, False, False, False], in_use)


class StaleDeviceTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._sysfs = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        CONF.set_override("instances_path", str(self._sysfs / "instances"))
        self.addCleanup(CONF.clear_override, "instances_path")

    def _kept(self, device: str) -> bool:
        metadata = {"rootfs_device_name": device, "image_min_ram": "0"}
        instance = types.SimpleNamespace(uuid=_UUID, system_metadata=metadata)
        container_domain.forget_stale_device(instance, self._sysfs)
        self.assertEqual("0", metadata.pop("image_min_ram"))
        return bool(metadata)

    def _attach(self, name: str, file: str) -> None:
        folder = self._sysfs / f"block/{name}/loop"
        folder.mkdir(parents=True)
        (folder / "backing_file").write_text(f"{file}\n")

    def test_kept(self) -> None:
        """Its own, and no loop device; not another guest's, and not what was detached before"""
        other = "00000000-0000-4000-8000-000000000000"
        for number, uuid in ((3, _UUID), (5, other)):
            self._attach(f"loop{number}", f"/var/lib/nova/instances/{uuid}/disk")
        (self._sysfs / "block/loop6").mkdir(parents=True)
        for device, count in (("loop3", 1), ("loop5", 0), ("loop6", 0), ("loop4", 0), ("nbd0", 1)):
            self.assertEqual(bool(count), self._kept(f"/dev/{device}"), device)
        instance = types.SimpleNamespace(uuid=_UUID, system_metadata={})
        container_domain.forget_stale_device(instance, self._sysfs)
        self.assertEqual({}, instance.system_metadata)

    def test_those_that_were_left(self) -> None:
        detached: list[str] = []
        self.useFixture(fixtures.MonkeyPatch("nova.privsep.fs.loopremove", detached.append))
        self._attach("loop2", f"/var/lib/nova/instances/{_UUID}/disk")
        self._attach("loop3", "/var/lib/nova/instances/00000000-0000-4000-8000-000000000000/disk")
        self._attach("loop10", f"/var/lib/nova/instances/{_UUID}_del/disk (deleted)")
        (self._sysfs / "block/loop4").mkdir()
        instance = types.SimpleNamespace(uuid=_UUID, system_metadata={})
        container_domain.detach_left_devices(instance, self._sysfs)
        self.assertEqual(["/dev/loop10", "/dev/loop2"], sorted(detached))


class TestProcesses(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def process(self, pid: int, name: str, group: str) -> None:
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "cgroup").write_text(f"5:devices:{group}\n")
        status = f"Name:\t{name}\nState:\tD (disk sleep)\n".encode(errors="surrogateescape")
        (self.proc / str(pid) / "status").write_bytes(status)

    def test_of_the_guest_alone(self) -> None:
        self.process(11, "init", "/machine/lxc-10-instance-00000001.libvirt-lxc")
        self.process(
            12, "(b)\x1b[2K\udcff", "/machine.slice/machine-lxc\\x2d10\\x2dinstance.scope/libvirt"
        )
        self.process(13, "neighbours", "/machine/lxc-101-instance-00000002.libvirt-lxc")
        self.process(14, "hosts", "/")
        (self.proc / "15").mkdir()  # It ends while it is read.

        texts = sorted(container_domain.processes(10, self.proc))

        name = "(b)\ufffd[2K\ufffd"
        self.assertEqual([f"{name} (pid 12, state D)", "init (pid 11, state D)"], texts)
