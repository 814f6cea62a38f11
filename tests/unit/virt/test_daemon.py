# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading

import nova.privsep
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.virt import daemon


class ShareTest(base.BaseTestCase):
    def share(self, threads: int) -> daemon.Share:
        group = nova.privsep.sys_admin_pctxt.cfg_section
        config = self.useFixture(config_fixture.Config(CONF)).config
        config(group=group, thread_pool_size=threads)
        return daemon.Share()

    def is_free(self, share: daemon.Share, wait_s: float) -> bool:
        """Whether somebody else gets one while the caller has what it has

        :param wait_s: of one that is free, long enough for a busy machine
        """
        got = threading.Event()

        def take() -> None:
            with share.one():
                got.set()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        thread.join(wait_s)
        self.waiting = thread
        return got.is_set()

    def test_half_is_left_to_nova(self) -> None:
        share = self.share(2)
        self.assertTrue(self.is_free(share, 200))
        with share.one():
            self.assertFalse(self.is_free(share, 0.05))
        self.waiting.join(200)
        self.assertFalse(self.waiting.is_alive(), "it gets the one that was given back")

    def test_one_there_is_always(self) -> None:
        self.assertTrue(self.is_free(self.share(1), 200))

    def test_who_has_one_goes_on_with_that(self) -> None:
        share = self.share(2)
        with share.one():
            with share.one():
                pass
            self.assertFalse(self.is_free(share, 0.05), "it is given back by the first alone")
        self.waiting.join(200)
