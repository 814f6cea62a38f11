# SPDX-License-Identifier: Apache-2.0
"""Every moment at which a guest's cards are cleaned and at which they are not, for both kinds of
guests, with a neighbour that has a card of the same address on the other host.

A resize and a deletion are in test_cleaning and test_cleaning_kvm.
"""

from __future__ import annotations

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver

from tests.fixtures import libvirt
from tests.functional import base, cleaned, kvm


class Moments(cleaned.Neighbours):
    def test_no_release(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._reboot_server(self.server, hard=True)
        self._reboot_server(self.server)
        self.assertCleaned()
        self.perform(self.server, "pause", "PAUSED")
        self.perform(self.server, "unpause", "ACTIVE")
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period("host1")
        self._start_server(self.server)
        self.assertCleaned()
        self._rebuild_server(self.server, base.IMAGE)
        self.assertCleaned()
        self._shelve_server(self.server, expected_state="SHELVED")
        self.period("host1")
        self._unshelve_server(self.server)
        self.assertCleaned()
        self.rescue_and_back()
        self.assertCleaned()
        self._delete_server(self.boot(self.flavor(), host="host1"))
        self.assertCleaned()
        self.assertGPUs(self.server, [self.MINE])

    def rescue_and_back(self) -> None:
        """Refused to containers"""

    def test_releases(self) -> None:
        self._fail_a_build()
        self.assertCleaned(f"host1 {self.NEXT}")
        self.period("host1")
        self.assertCleaned(f"host1 {self.NEXT}")
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.assertCleaned(f"host1 {self.NEXT}")
        self.perform(self.server, "shelveOffload", "SHELVED_OFFLOADED")
        both = f"host1 {self.NEXT}", f"host1 {self.MINE}"
        self.assertCleaned(*both)
        self._unshelve_server(self.server)
        self.assertCleaned(*both)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.perform(self.server, "shelveOffload", "SHELVED_OFFLOADED")
        cleaned_by_now = list(self.cleaned.cards)
        self._delete_server(self.server)
        self.assertCleaned(*cleaned_by_now)

    def _fail_a_build(self) -> None:
        """When its guest runs already; one that never started had nothing."""
        get_info = libvirt_driver.LibvirtDriver.get_info
        failed = []

        def fail_once(*args: object, **kwargs: object) -> object:
            if failed:
                return get_info(*args, **kwargs)
            failed.append(True)
            raise libvirt.error("no", fakelibvirt.VIR_ERR_INTERNAL_ERROR)

        with fixtures.MonkeyPatch("nova.virt.libvirt.driver.LibvirtDriver.get_info", fail_once):
            self.boot_refused(self.gpu_flavor(1), host="host1")

    def test_releases_of_a_host_that_comes_back(self) -> None:
        reaped = self.boot(self.gpu_flavor(1), host="host1")
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self._delete_server(reaped)
        self.assertCleaned()
        self.bring_back("host1")
        self.assertCleaned(f"host1 {self.MINE}")
        self.period("host1")
        self.assertCleaned(f"host1 {self.MINE}")
        self.reap()
        self.assertCleaned(f"host1 {self.MINE}", f"host1 {self.NEXT}")


class LXCMomentsTest(Moments, base.GPUServersTestBase):
    pass


class KVMMomentsTest(Moments, kvm.KVMServersTestBase):
    MINE, NEXT = kvm.ALL[:2]

    def rescue_and_back(self) -> None:
        self.rescue(self.server)
        self.perform(self.server, "unrescue", "ACTIVE")
