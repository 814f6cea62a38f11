# SPDX-License-Identifier: Apache-2.0
"""A card without a proof that it is clean is given to no instance before it was cleaned."""

from __future__ import annotations

from typing import Any
from unittest import mock

import fixtures
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu.core import exception
from tests.functional import alone, base, cleaned

CARD, NEXT = base.FIRST_SOCKET[:2]


class ProofsTest(alone.Alone, base.GPUServersTestBase):
    leaves = dict.fromkeys(("quarantine", "reserved"), "cards that are kept back")

    def setUp(self) -> None:
        super().setUp()
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.folder = self.state() / "gpu-clean"

    def proven(self) -> set[str]:
        return {path.stem for path in self.folder.iterdir()}

    def test_first_start_and_a_guest(self) -> None:
        self.assertEqual(set(base.ALL), self.proven())
        server = self.boot(self.gpu_flavor(1))
        self.assertEqual(set(base.ALL[1:]), self.proven())
        self._delete_server(server)
        self.assertEqual([f"host1 {CARD}"], self.cleaned.cards)
        self.assertIn(server["id"], (self.folder / f"{CARD}.json").read_text())
        self.restart_host("host1")
        self.assertEqual([f"host1 {CARD}"], self.cleaned.cards)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_restart_before_the_release_was_seen(self) -> None:
        """libvirtd goes away just after the domain was undefined."""
        server = self.boot(self.gpu_flavor(1))
        undefined = libvirt_driver.LibvirtDriver._undefine_domain
        reset = exception.DomainsUnreadable("Cannot recv data: Connection reset by peer")
        gone = mock.patch("nova_gpu.virt.usage.domains.look", side_effect=reset)

        def undefine_and_lose(driver: Any, *args: Any, **kwargs: Any) -> None:
            undefined(driver, *args, **kwargs)
            gone.start()

        name = "nova.virt.libvirt.driver.LibvirtDriver._undefine_domain"
        with fixtures.MonkeyPatch(name, undefine_and_lose):
            self._delete_server(server)
        self.assertEqual([], self.cleaned.cards)
        gone.stop()
        self.restart_host("host1")
        self.period()
        self.assertEqual([f"host1 {CARD}"], self.cleaned.cards)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)
