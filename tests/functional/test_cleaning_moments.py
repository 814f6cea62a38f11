# SPDX-License-Identifier: Apache-2.0
"""Every moment at which a guest's cards are cleaned and at which they are not, for both kinds of
guests, with a neighbour that has a card of the same address on the other host."""

from __future__ import annotations

import pathlib

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils

from nova_gpu.host.state import quarantine
from tests.fixtures import daemons
from tests.functional import base, cleaned, kvm

IMAGE = kvm.IMAGE


class Moments:
    MINE, NEXT = base.FIRST_SOCKET[:2]

    def setUp(self) -> None:
        super().setUp()
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host("host1")
        self.server = self.boot(self.gpu_flavor(1))
        self.start_host("host2")
        self.stranger = self.boot(self.gpu_flavor(1), host="host2")
        self.expected: list[str] = []

    def assertCleaned(self, *cards: str) -> None:
        """These since it was asserted last, and nobody lost a card of theirs."""
        self.expected += cards
        self.assertEqual(self.expected, self.cleaned.cards)
        self.assertGPUs(self.stranger, [self.MINE], "host2")
        for host in self.hosts:
            self.assertEqual({}, quarantine.load(self.state(host) / "gpu-quarantine"))

    def act(self, action: str, status: str, argument: object = None) -> None:
        self.api.post_server_action(self.server["id"], {action: argument})
        self._wait_for_state_change(self.server, status)

    def test_no_release(self) -> None:
        self.flags(shelved_offload_time=-1)
        self._reboot_server(self.server, hard=True)
        self._reboot_server(self.server)
        self.assertCleaned()
        self.act("pause", "PAUSED")
        self.act("unpause", "ACTIVE")
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period("host1")
        self._start_server(self.server)
        self.assertCleaned()
        self._rebuild_server(self.server, IMAGE)
        self.assertCleaned()
        self._shelve_server(self.server, expected_state="SHELVED")
        self.period("host1")
        self._unshelve_server(self.server)
        self.assertCleaned()
        self.rescue()
        self.assertCleaned()
        self._delete_server(self.boot(self.flavor(), host="host1"))
        self.assertCleaned()
        self.assertGPUs(self.server, [self.MINE])

    def rescue(self) -> None:
        """Refused to containers"""


class LXCMomentsTest(Moments, base.GPUServersTestBase):
    """Those of a release are in test_cleaning."""

    def setUp(self) -> None:
        self.useFixture(daemons.Daemons())
        super().setUp()


class KVMMomentsTest(Moments, kvm.KVMServersTestBase):
    MINE, NEXT = kvm.ALL[:2]

    def rescue(self) -> None:
        folder = libvirt_utils.get_instance_path(self.instance(self.server))
        pathlib.Path(folder).mkdir(exist_ok=True)
        self.act("rescue", "RESCUE", {"rescue_image_ref": IMAGE})
        self.act("unrescue", "ACTIVE")

    def test_releases(self) -> None:
        self._fail_a_build()
        self.assertCleaned(f"host1 {self.NEXT}")
        self.flags(shelved_offload_time=-1)
        self._shelve_server(self.server, expected_state="SHELVED")
        self.act("shelveOffload", "SHELVED_OFFLOADED")
        self.assertCleaned(f"host1 {self.MINE}")
        self._delete_server(self.server)
        self.assertCleaned()

    def test_releases_of_a_host_that_comes_back(self) -> None:
        reaped = self.boot(self.gpu_flavor(1), host="host1")
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self._delete_server(reaped)
        self.assertCleaned()
        self.bring_back("host1")
        self.assertCleaned(f"host1 {self.MINE}")
        self.reap()
        self.assertCleaned(f"host1 {self.NEXT}")

    def _fail_a_build(self) -> None:
        """When its guest runs already"""
        get_info = libvirt_driver.LibvirtDriver.get_info
        failed = []

        def fail_once(*args: object, **kwargs: object) -> object:
            if failed:
                return get_info(*args, **kwargs)
            failed.append(True)
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, "no", error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR
            )

        with fixtures.MonkeyPatch("nova.virt.libvirt.driver.LibvirtDriver.get_info", fail_once):
            self.boot_refused(self.gpu_flavor(1), host="host1")
