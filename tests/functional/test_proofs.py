# SPDX-License-Identifier: Apache-2.0
"""A card without a proof that it is clean is given to no instance before it was cleaned."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from typing import Any
from unittest import mock

import fixtures
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu.core import exception
from nova_gpu.core.availability import Source, Unavailable
from nova_gpu.host.state import files, quarantine
from tests.fixtures import failing_calls, kernel
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

    def test_another_boot_of_the_host(self) -> None:
        kernel.boot(self.hosts["host1"], "another")
        self.restart_host("host1")
        self.assertEqual({f"host1 {each}" for each in base.ALL}, set(self.cleaned.cards))

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

    def test_full_disk_and_a_cleaning_that_fails(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.cleaned.stain(CARD)
        with _full():
            self._delete_server(server)
            self.period()
            self.restart_host("host1")
            self.period()
            self.assertInventory(reserved=1, used=0)
            self.boot_refused(self.gpu_flavor(8))
        self.period()
        self.assertGPUs(self.boot(self.gpu_flavor(7)), base.ALL[1:])

    def test_full_disk(self) -> None:
        """What is clean and cannot be written is offered once that can be."""
        server = self.boot(self.gpu_flavor(1))
        with _full():
            self._delete_server(server)
            self.period()
            self.assertInventory(reserved=1, used=0)
            self.boot_refused(self.gpu_flavor(8))
        self.period()
        self.assertEqual([f"host1 {CARD}"], self.cleaned.cards)
        self.assertInventory(reserved=0, used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_unreadable_as_the_service_starts(self) -> None:
        read = files.read_json

        def unreadable(path: pathlib.Path, **kwargs: Any) -> Any:
            if path.parent == self.folder:
                raise OSError(errno.EMFILE, "Too many open files")
            return read(path, **kwargs)

        with fixtures.MonkeyPatch("nova_gpu.host.state.files.read_json", unreadable):
            self.restart_host("host1")
        self.assertEqual({f"host1 {each}" for each in base.ALL}, set(self.cleaned.cards))

    def test_proof_that_stays(self) -> None:
        """A guest whose card would be called clean after a restart is not started."""
        stays = OSError(errno.EROFS, "Read-only file system")
        with mock.patch.object(files, "remove", side_effect=stays):
            self.boot_refused(self.gpu_flavor(1))
        self.period()
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_quarantine_that_cannot_be_written(self) -> None:
        gpus = self.computes["host1"].driver._gpus
        card = gpus._published.cards()[0]
        with _full():
            verdict = Unavailable("it fell off the bus", "replace it", Source.XID)
            self.assertRaises(OSError, gpus.releases.quarantine_fault, card, verdict, None)
            self.period()
            self.assertInventory(reserved=1, used=0)
            self.boot_refused(self.gpu_flavor(8))
        self.period()
        self.assertTrue((self.state() / f"gpu-quarantine/{card.address}.json").exists())
        self.assertInventory(reserved=1, used=0)

    def test_each_call_fails_once(self) -> None:
        """Whichever it is as a guest starts and ends and the service looks: the next one gets what
        was cleaned, and a period or two heals the rest."""
        with failing_calls.noted(self.folder) as calls:
            self._live()
        self.assertGreater(len(calls), 20)
        for number, call in enumerate(calls, 1):
            code = _CODES[number % len(_CODES)]
            with failing_calls.one(self.folder, number, code):
                self._live()
            for _ in range(2):
                self.period()
            name = f"{call}, {errno.errorcode[code]}"
            self.assertEqual(set(base.ALL), self.proven(), name)
            self.assertInventory(reserved=0, used=0)

    def _live(self) -> None:
        server = self.boot(self.gpu_flavor(1), expected_state=None)
        before = len(self.cleaned.cards)
        given = self.recorded(server)
        was_started = self._show_server(server)["status"] == "ACTIVE"
        self._delete_server(server)
        self.period()
        if was_started:
            self.assertEqual([f"host1 {each}" for each in given], self.cleaned.cards[before:])

    def test_each_call_of_the_quarantine_fails_once(self) -> None:
        gpus = self.computes["host1"].driver._gpus
        card = gpus._published.cards()[0]
        folder = self.state() / "gpu-quarantine"

        def fail() -> None:
            with contextlib.suppress(OSError):
                gpus.releases.quarantine_fault(
                    card, Unavailable("it fell off", "replace it", Source.XID), None
                )
            self.period()

        with failing_calls.noted(folder) as calls:
            fail()
        self.assertGreater(len(calls), 10)
        for number, call in enumerate(calls, 1):
            code = _CODES[number % len(_CODES)]
            quarantine.release(folder, card.address)
            for _ in range(2):
                self.period()
            self.assertInventory(reserved=0, used=0)
            with failing_calls.one(folder, number, code):
                fail()
                # All of them, where it cannot be read which are in quarantine
                self.assertIn(self.inventory()["reserved"], (1, 8), call)
            self.period()
            self.assertEqual([card.address], list(quarantine.load(folder)), call)
            self.assertInventory(reserved=1, used=0)
        self.restart_host("host1")
        self.assertInventory(reserved=1, used=0)


_CODES = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.ESTALE)


def _full() -> Any:
    full = OSError(errno.ENOSPC, "No space left on device")
    return mock.patch.object(files, "write", side_effect=full)
