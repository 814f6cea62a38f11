# SPDX-License-Identifier: Apache-2.0
"""A card is given to nobody before it is clean, and cleaned whenever a guest gives it back."""

from __future__ import annotations

import io

import fixtures

from nova_gpu.cmd import quarantine as command
from tests.functional import base, cleaned

CARD = base.FIRST_SOCKET[0]


class CleaningTest(base.GPUServersTestBase):
    # As in a cloud: nobody waits for a host that deletes.
    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.flags(thread_pool_size=8, group="nova_sys_admin")
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.folder = self.state() / "gpu-clean"

    def proven(self) -> set[str]:
        return {path.stem for path in self.folder.iterdir()}

    def test_delete(self) -> None:
        self.assertEqual(set(base.ALL), self.proven())
        server = self.boot(self.gpu_flavor(1))
        self.assertEqual(set(base.ALL[1:]), self.proven())
        self._delete_server(server)
        self._wait_for_assert(lambda: self.assertInventory(used=0))
        self.assertIn("[gpu]clean_command for GPU 0000:04:00.0: 10de:1091 lxc", self.log())
        self.assertIn(server["id"], (self.folder / f"{CARD}.json").read_text())
        self.restart_host("host1")
        self.assertEqual([f"host1 {CARD}"], self.cleaned.cards)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_meanwhile(self) -> None:
        """Nobody gets a card that is being cleaned, and nobody else waits for it."""
        plain, server = self.boot(self.flavor()), self.boot(self.gpu_flavor(4))
        with self.cleaned.stopped():
            self.api.delete_server(server["id"])
            begun = {*base.FIRST_SOCKET}
            self._wait_for_assert(lambda: self.assertEqual(begun, self.cleaned.begun()))
            self._reboot_server(plain, hard=True)
            self.boot_refused(self.gpu_flavor(5))
            shown = self._show_server(server)
            self.assertEqual("deleting", shown["OS-EXT-STS:task_state"], "else this shows nothing")
        self._wait_until_deleted(server)
        self.assertGPUs(plain, [])
        self._wait_for_assert(lambda: self.assertInventory(used=0))
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_out_until_released(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.sent()
        self.cleaned.stain(CARD)
        self._delete_server(server)
        self._wait_for_assert(lambda: self.assertInventory(reserved=1, used=0))
        release, quarantine = self.sent()
        self.assertEqual(("gpu.quarantine", "ERROR"), (quarantine.event_type, quarantine.priority))
        self.assertIn("[gpu]clean_command ended with 1", quarantine.payload["reason"])
        self.assertEqual("gpu.release", release.event_type)
        self.assertIn(f"GPU {CARD} is in quarantine: [gpu]clean_command ended with 1", self.log())
        self.period()
        self.boot_refused(self.gpu_flavor(8))
        folder = self.state() / "gpu-quarantine"
        printed = self.useFixture(fixtures.MonkeyPatch("sys.stdout", io.StringIO())).new_value
        self.assertEqual(0, command.release(folder, CARD))
        self.assertIn("[gpu]clean_command ended with 1", printed.getvalue())
        self.period()
        self.assertInventory(reserved=1)  # it is cleaned again, which fails again
        self.cleaned.wipe(CARD)
        self.assertEqual(0, command.release(folder, CARD))
        self.sent()
        self.period()
        self.assertEqual(["gpu.recover"], [notification.event_type for notification in self.sent()])
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)
