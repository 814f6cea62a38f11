# SPDX-License-Identifier: Apache-2.0
"""An instance whose guest ends here and begins again: resized on its host, shelved and back."""

from __future__ import annotations

from typing import Any

from tests.lxc import base


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


class ShelveTest(base.SnapshotTestCase):
    def set_host_flags(self) -> None:
        super().set_host_flags()
        self.flags(shelved_offload_time=0)

    def test_somebody_else_has_them_meanwhile(self) -> None:
        server = self.boot_with(2)
        self.assertGPUs(server, {0, 1})
        self.run_inside(server, "/bin/sh", "-c", "echo mine >/root/note; sync")

        self._shelve_server(server)
        self.assertEqual((0, 0), (self.usage(), self.allocated(server)))
        other = self.boot_with(2)
        self.assertGPUs(other, {0, 1})
        self._unshelve_server(server)

        self.assertGPUs(server, {2, 3})
        self.assertEqual("mine\n", self.run_inside(server, "/bin/cat", "/root/note").stdout)
        self.assertGPUs(other, {0, 1})
        self.assertEqual(4, self.usage())
