# SPDX-License-Identifier: Apache-2.0
"""A guest keeps its GPUs through everything that may happen to it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import nova.privsep.fs
from nova.conf import CONF

from lab.cloud import guest
from tests.cloud import fixtures as cloud_fixtures
from tests.lxc import base, place

GPUS = {1, 2}


class LifecycleTest(base.LXCTestCase):
    def setUp(self) -> None:
        super().setUp()
        # Another instance before it, so that its cards are not the ones that anybody gets first.
        self.boot_with(1)
        self._server = self.boot_with(2)
        self.assertGPUs(self._server, GPUS)

    def _new_init(self, happens: Callable[[], Any]) -> None:
        """Does what makes the guest start again, and waits until it has."""
        domain = self.domain(self._server)
        before = guest.init_pid(self._lv, domain)
        happens()
        self.wait_for("another init", lambda: self._init() not in (None, before))

    def _init(self) -> int | None:
        try:
            return guest.init_pid(self._lv, self.domain(self._server))
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            return None  # it is down, or just starting

    def test_hard_reboot(self) -> None:
        self._new_init(lambda: self.reboot(self._server, "HARD"))

        self.assertGPUs(self._server, GPUS)

    def test_soft_reboot(self) -> None:
        self._new_init(lambda: self.reboot(self._server, "SOFT"))

        self.assertGPUs(self._server, GPUS)
        self.assertIn("Instance shutdown successfully", self.stdlog.logger.output)

    def test_soft_reboot_that_the_guest_ignores(self) -> None:
        self.flags(wait_soft_reboot_seconds=2, group="libvirt")
        init = guest.init_pid(self._lv, self.domain(self._server))
        os.kill(init, signal.SIGSTOP)

        self._new_init(lambda: self.reboot(self._server, "SOFT"))

        self.assertGPUs(self._server, GPUS)

    def test_reboot_from_inside(self) -> None:
        self._new_init(lambda: self.run_inside(self._server, "/bin/reboot", "-f"))

        self.assertGPUs(self._server, GPUS)
        self.wait_until(self._server, "ACTIVE")

    def test_stop_and_start(self) -> None:
        detached = self._detached()
        self._stop_server(self._server)
        self.assertEqual(3, self.usage())
        other = self.boot_with(1)

        self._start_server(self._server)

        self.assertGPUs(self._server, GPUS)
        self.assertGPUs(other, {3})
        (file,) = detached  # once, although the guest was taken down twice
        self.assertIn(self._server["id"], str(file))

    def _detached(self) -> list[str | None]:
        """Grows by the file behind each loop device that Nova detaches, ``None`` without one."""
        files: list[str | None] = []
        detach = nova.privsep.fs.loopremove

        def recorded(device: str, *args: Any, **kwargs: Any) -> Any:
            file = pathlib.Path(f"/sys/block/{pathlib.Path(device).name}/loop/backing_file")
            files.append(file.read_text() if file.exists() else None)
            return detach(device, *args, **kwargs)

        self.stub_out("nova.privsep.fs.loopremove", recorded)
        return files

    def test_rebuild(self) -> None:
        self.run_inside(self._server, "/bin/sh", "-c", "echo mine >/root/note; sync")
        self.act(self._server, "rebuild", "ACTIVE", imageRef=base.IMAGE)

        self.assertEqual("", self.run_inside(self._server, "/bin/ls", "/root").stdout)
        self.assertGPUs(self._server, GPUS)
        self.assertEqual(3, self.usage())

    def test_poweroff_from_inside(self) -> None:
        """Nova hears of it some seconds later, and the guest can be started again."""
        self.run_inside(self._server, "/bin/poweroff", "-f")
        self.wait_until(self._server, "SHUTOFF")

        self._start_server(self._server)

        self.assertGPUs(self._server, GPUS)

    def test_service_restart(self) -> None:
        init = guest.init_pid(self._lv, self.domain(self._server))

        self.restart_compute()

        self.assertEqual(init, guest.init_pid(self._lv, self.domain(self._server)))
        self.assertGPUs(self._server, GPUS)
        self.assertEqual((3, 0), (self.usage(), self.reserved()))
        self.assertGPUs(self.boot_with(1), {3})
        self._new_init(lambda: self.reboot(self._server, "HARD"))
        self.assertGPUs(self._server, GPUS)

    def test_delete_gives_back(self) -> None:
        # As of a start in whose midst nova-compute died, before it wrote the device down.
        disk = pathlib.Path(CONF.instances_path, self._server["id"], "disk")
        nova.privsep.fs.loopsetup(str(disk))
        self.delete(self._server)

        self.assertEqual(1, self.usage())
        self.assertGPUs(self.boot_with(7), range(1, 8))


class TurnsTest(base.LXCTestCase):
    def test_two_take_turns_by_stop_and_start(self) -> None:
        every = range(len(place.GPUS))
        flavor = self.flavor(**{"gpus": f"= {len(every)}", "gpu:on_stop": "release"})
        first = self.boot(flavor)
        self.assertGPUs(first, every)
        self.run_inside(first, "/bin/sh", "-c", "echo mine >/root/note; sync")
        self._stop_server(first)
        self.assertEqual((0, 0), (self.usage(), self.allocated(first)))

        second = self.boot(flavor)
        self.assertGPUs(second, every)
        self._stop_server(second)
        self._start_server(first)
        self.assertGPUs(first, every)
        self.assertEqual("mine\n", self.run_inside(first, "/bin/cat", "/root/note").stdout)
        self.assertEqual(0, self.allocated(second))


class SameHostTest(base.LXCTestCase):
    def test_resize_revert_and_confirm(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot_with(2)
        self.assertGPUs(server, {0, 1})
        four = self.flavor(gpus="= 4")

        self._resize(server, four)
        self.assertGPUs(server, {4, 5, 6, 7})
        # Until then the old ones are the instance's as well.
        self.assertEqual(6, self.usage())
        self.assertIn("at most 2 free", self.refusal(self.flavor(gpus="= 3")))

        self.act(server, "revertResize", "ACTIVE")
        self.assertGPUs(server, {0, 1})
        self.wait_for("the new ones are free", lambda: self.usage() == 2)

        self._resize(server, four)
        self.act(server, "confirmResize", "ACTIVE")
        self.assertGPUs(server, {4, 5, 6, 7})
        self.wait_for("the old ones are free", lambda: self.usage() == 4)
        self.assertGPUs(self.boot(four), {0, 1, 2, 3})

    def test_resize_down_to_none_and_from_none(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot_with(4)
        used = 4
        for words, gpus in (({"gpus": "= 2"}, {4, 5}), ({}, set()), ({"gpus": "= 1"}, {0})):
            self._resize(server, self.flavor(**words))
            self.assertGPUs(server, gpus)
            self.assertEqual(used + len(gpus), self.usage())
            self.act(server, "confirmResize", "ACTIVE")
            used = len(gpus)
            self.wait_for("the old ones are free", lambda used=used: self.usage() == used)
            self.assertGPUs(server, gpus)

    def _resize(self, server: dict[str, Any], flavor: str) -> None:
        self.act(server, "resize", "VERIFY_RESIZE", flavorRef=flavor)


class SnapshotTest(base.LXCTestCase):
    # An instance's disk goes to Glance, and is no larger than the image then.
    FLAVOR = {**base.LXCTestCase.FLAVOR, "disk": 0}  # noqa: RUF012

    def set_host_flags(self) -> None:
        super().set_host_flags()
        self.useFixture(cloud_fixtures.KeptUploads())
        self.flags(snapshot_image_format="raw", group="libvirt")
        self.flags(shelved_offload_time=0)

    def test_paused_saved_and_shelved(self) -> None:
        server = self.boot_with(2)
        self.run_inside(server, "/bin/sh", "-c", "echo mine >/root/note; sync")
        init = guest.init_pid(self._lv, self.domain(server))
        self.act(server, "pause", "PAUSED")
        self.assertEqual(2, self.usage())
        self.act(server, "unpause", "ACTIVE")
        self.assertGPUs(server, {0, 1})
        self.act(server, "createImage", "ACTIVE", name="of-it")
        self.assertEqual(init, guest.init_pid(self._lv, self.domain(server)))
        self.assertGPUs(server, {0, 1})

        self._shelve_server(server)
        self.assertEqual((0, 0), (self.usage(), self.allocated(server)))
        other = self.boot_with(2)
        self.assertGPUs(other, {0, 1})
        self._unshelve_server(server)
        self.assertGPUs(server, {2, 3})
        self.assertEqual("mine\n", self.run_inside(server, "/bin/cat", "/root/note").stdout)
