# SPDX-License-Identifier: Apache-2.0
"""libvirt or the database does not answer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova.virt.libvirt import driver as libvirt_driver
from oslo_messaging import exceptions as messaging_exceptions

from tests.functional import alone, base


def _fail_once(
    name: str, happened: list[str], which: Any, method: Any, *args: Any, **kwargs: Any
) -> Any:
    if happened or kwargs != which:
        return method(*args, **kwargs)
    happened.append(name)
    raise nova_exception.HypervisorUnavailable()


class _Libvirt(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def _once_unreachable(self, name: str, **kwargs: Any) -> list[str]:
        """The next such call of a ``Host`` fails; gives the name of the compute host it was."""
        happened: list[str] = []
        for compute_host, compute in self.computes.items():
            host = compute.driver._host
            method = getattr(host, name)
            fail = functools.partial(_fail_once, compute_host, happened, kwargs, method)
            self.useFixture(fixtures.MockPatchObject(host, name, fail))
        return happened


class LibvirtTest(alone.Alone, _Libvirt):
    def _instead(self, method: str, substitute: Callable[..., Any]) -> None:
        self.useFixture(
            fixtures.MonkeyPatch(f"nova.virt.libvirt.driver.LibvirtDriver.{method}", substitute)
        )

    def test_what_a_start_failed_of_is_what_is_said(self) -> None:
        happened = []

        def fail(this: libvirt_driver.LibvirtDriver, *args: Any, **kwargs: Any) -> None:
            happened.append(self._once_unreachable("get_connection"))
            raise nova_exception.BuildAbortException(instance_uuid="it", reason="no such disk")

        self._instead("_create_guest_with_network", fail)
        self.assertIn("no such disk", self.boot_refused(self.gpu_flavor(1)))
        self.assertEqual([["host1"]], happened)


class AnotherHostTest(_Libvirt):
    def test_without_a_hold_another_host_is_tried(self) -> None:
        self.start_host("host2")
        happened = self._once_unreachable("list_guests", only_running=False)
        server = self.boot(self.gpu_flavor(2))
        (other,) = {"host1", "host2"} - set(happened)
        self.assertGPUs(server, base.FIRST_SOCKET[:2], other)
        self.assertInventory(used=0, host=happened[0])
        self.assertIn("Cannot tell which guest has which GPU", self.log())


class DatabaseTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        self.server = self.boot(self.gpu_flavor(2))
        self.period()

    def _unreadable(self) -> Any:
        silent = messaging_exceptions.MessagingTimeout("nobody answers")
        return mock.patch("nova_gpu.virt.usage.records.read", side_effect=silent)

    def test_never_read_yet_all_guests_keep_theirs_and_none_is_called_a_stranger(self) -> None:
        with self._unreadable():
            self.restart_host("host1")
            # Instances may have parts of any of the others.
            self.assertInventory(reserved=8, used=2)
            self.assertIn("until Nova's database answers", self.log())
            self.assertNotIn("virsh", self.log())
            self.assertIn("none free", self.boot_refused(self.gpu_flavor(4)))
        self.period()
        self.assertInventory(used=2)
        self.assertGPUs(self.boot(self.gpu_flavor(4)), base.SECOND_SOCKET)
