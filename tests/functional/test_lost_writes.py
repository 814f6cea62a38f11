# SPDX-License-Identifier: Apache-2.0
"""Each write to Placement, Nova's database and libvirt: lost, without an answer, refused, repeated.

What the database, the domain and Placement say is the same after the next period, without a
restart. All writes of this project, and their tests:

Placement
  a stop, a start, a period      ``put_allocations``: LostWrites here, RebuildTest of
                                 test_lost_repairs
  a move's allocation            ``delete_allocation_for_instance``, ``move_allocations``:
                                 EndedMoveTest of test_lost_repairs
  nova-gpu verify --repair       VerifyTest of test_lost_repairs
  the scheduler's trait          test_lost_traits
  openstack gpu                  traits, flavors, metadata: test_killed, as a command that
                                 gets no answer ends, and is run again
Nova's database
  instance: mark, devices, task  LostWrites here
  instance: text for the guest   KVMLostDescriptionTest here
  a move's end                   migration and context: EndedMoveTest of test_lost_repairs
  a reason of no start           LostReasonTest of test_lost_repairs
libvirt
  a definition without GPUs      LostWrites here, LeftDomain of test_lost_repairs
  a definition for a rescue      KVMLostRescueTest here
  a guest's end, a domain's note test_lost_stops

All else is Nova's own write, which Nova repeats or answers with an error: the provider tree, the
claim, the definition and start of a guest, its removal.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exceptions
from nova import objects
from nova.scheduler.client import report
from nova.tests.functional.api import client
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import utils as libvirt_utils
from testtools import content

from nova_gpu.core import names
from nova_gpu.core.guest import devices as guest_devices
from tests.functional import base, kvm, test_stopped
from tests.functional.readings import Server

Write = Callable[..., Any]


def _is_mark(save: Any, *args: Any, **kwargs: Any) -> bool:
    changed = save.obj_what_changed()
    return "system_metadata" in changed and names.RELEASED in save.system_metadata


def _is_record(save: Any, *args: Any, **kwargs: Any) -> bool:
    return "resources" in save.obj_what_changed()


def _is_description(save: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether the GPUs are written for the config drive, on the way to a guest."""
    is_told = bool(guest_devices.keys_of(save.system_metadata))
    return (
        save.task_state == "spawning" and "system_metadata" in save.obj_what_changed() and is_told
    )


def _is_task(save: Any, *args: Any, **kwargs: Any) -> bool:
    return save.task_state == "powering-off" and kwargs.get("expected_task_state") == [None]


def _is_end_of_task(save: Any, *args: Any, **kwargs: Any) -> bool:
    return save.task_state is None and kwargs.get("expected_task_state") == ["powering-off"]


# By name, whose method it is and of which calls
WRITES: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "allocation": (report.SchedulerReportClient, "put_allocations", lambda *args, **kwargs: True),
    "mark": (objects.Instance, "save", _is_mark),
    "description": (objects.Instance, "save", _is_description),
    "record": (objects.Instance, "save", _is_record),
    "task": (objects.Instance, "save", _is_task),
    "end of the task": (objects.Instance, "save", _is_end_of_task),
    "domain": (libvirt_host.Host, "write_instance_config", lambda *args, **kwargs: True),
}


def _no_answer(write: Write, *args: Any, **kwargs: Any) -> Any:
    write(*args, **kwargs)
    raise ks_exceptions.ConnectTimeout


def _lost(write: Write, *args: Any, **kwargs: Any) -> Any:
    raise ks_exceptions.ConnectFailure


def _twice(write: Write, *args: Any, **kwargs: Any) -> Any:
    write(*args, **kwargs)
    return write(*args, **kwargs)


def _refused(write: Write, *args: Any, **kwargs: Any) -> Any:
    """As the report client says it of all answers but a conflict, that of a proxy too"""
    return False


def _done_and_refused(write: Write, *args: Any, **kwargs: Any) -> Any:
    """502 and 504 of a proxy, behind which Placement did it"""
    write(*args, **kwargs)
    return False


FAILURES = (_no_answer, _lost, _twice)
CASES = [
    *((w, failure) for w in ("allocation", "mark", "record", "domain") for failure in FAILURES),
    *(("allocation", failure) for failure in (_refused, _done_and_refused)),
]


@contextlib.contextmanager
def failing(write: str, failure: Callable[..., Any], *, once: bool = True) -> Iterator[list[str]]:
    """The first such write fails so, or all do; yields what has failed."""
    owner, name, concerns = WRITES[write]
    method, failed = getattr(owner, name), list[str]()

    def call(*args: Any, **kwargs: Any) -> Any:
        if (failed and once) or not concerns(*args, **kwargs):
            return method(*args, **kwargs)
        failed.append(write)
        return failure(method, *args, **kwargs)

    with mock.patch.object(owner, name, call):
        yield failed


class LostWrites(test_stopped.Stopping):
    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.all)
        self.every = self.recorded(self.server)

    def assertAgree(self, server: Server) -> None:
        """It has all of its GPUs, or none, by all that say so; and none as it is stopped."""
        if self._show_server(server)["status"] == "ACTIVE":
            self.assertGPUs(server, self.every)
            self.assertInventory(used=self.TOTAL)
        else:
            self.assertNothing(server)

    def act(self, action: str) -> None:
        """Do it, whatever comes of it."""
        with contextlib.suppress(Exception):
            self.api.post_server_action(self.server["id"], {action: None})
        self._wait_for_assert(
            lambda: self.assertIsNone(self._show_server(self.server)["OS-EXT-STS:task_state"])
        )

    @contextlib.contextmanager
    def case(self, *parts: Any) -> Iterator[None]:
        self.addDetail("case", content.text_content(str(parts)))
        with self.subTest(parts):
            yield

    def test_stop(self) -> None:
        for write, failure in CASES:
            with self.case(write, failure):
                instance = self.instance(self.server)
                instance.system_metadata.pop(names.RELEASED, None)  # as if it never had
                instance.save()
                with failing(write, failure) as failed:
                    self.act("os-stop")
                self.assertEqual([write], failed)
                self.period()
                self.assertNothing(self.server)
                self._start_server(self.server)
                self.assertGPUs(self.server, self.every)

    def test_period(self) -> None:
        """What a stop could not do, one period begins, and the next ends."""
        for write in WRITES.keys() - {"description"}:
            for failure in (_no_answer, _lost):
                with self.case(write, failure):
                    with failing("domain", _lost):
                        self.act("os-stop")
                    self.assertEqual(self.every, self.recorded(self.server))
                    instance = self.instance(self.server)
                    instance.system_metadata.pop(names.RELEASED, None)
                    instance.save()
                    with failing(write, failure) as failed:
                        self.period()
                    self.assertEqual([write], failed)
                    self.period()
                    self.assertNothing(self.server)
                    self._start_server(self.server)
                    self.assertGPUs(self.server, self.every)

    def test_start(self) -> None:
        self._stop_server(self.server)
        for write, failure in CASES:
            # The record is saved again by Nova, with its own save of the instance.
            for once in {"allocation": (True, False), "record": (True,)}.get(write, ()):
                with self.case(write, failure, once):
                    with failing(write, failure, once=once) as failed:
                        self.act("os-start")
                    self.assertIn(write, failed)
                    self.period()
                    self.assertAgree(self.server)
                    if self._show_server(self.server)["status"] == "SHUTOFF":
                        self._start_server(self.server)
                    self.assertGPUs(self.server, self.every)
                    self._stop_server(self.server)
                    self.assertNothing(self.server)


class Rebuilding:
    def setUp(self) -> None:
        super().setUp()
        self.start_host()

    def fail_rebuild(self, server: Server) -> None:
        image = self._show_server(server)["image"]["id"]
        with mock.patch.object(libvirt_driver.LibvirtDriver, "spawn", side_effect=RuntimeError):
            self.refused({"rebuild": {"imageRef": image}}, server)


class FailedRebuild(Rebuilding):
    """Nova deletes the allocation of an instance whose rebuild has failed, and never makes it."""

    def test_recovered(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        every = self.recorded(server)
        self.fail_rebuild(server)
        self._wait_for_state_change(server, "ERROR")
        self.assertEqual({}, self.allocations(server))
        self.period()
        self.assertEqual({"host1": 2}, self.allocated(server))
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.assertGPUs(server, every)

    def test_recovered_before_a_period(self) -> None:
        server = self.boot(self.gpu_flavor(2))
        every, before = self.recorded(server), self.allocations(server)
        self.period()
        self.fail_rebuild(server)
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.period()
        self.assertGPUs(server, every)
        # And all else that its flavor asks for
        self.assertEqual(before, self.allocations(server))


class KVMLostRescueTest(test_stopped.Stopping, kvm.KVMServersTestBase):
    """The definition of a domain whose instance gets GPUs again for its rescue"""

    def test_definition(self) -> None:
        server = self.boot(self.all)
        pathlib.Path(libvirt_utils.get_instance_path(self.instance(server))).mkdir()
        for failure in FAILURES:
            with self.subTest(failure=failure.__name__):
                self._stop_server(server)
                status = "RESCUE" if failure is _twice else "ERROR"
                with failing("domain", failure) as writes:
                    body = {"rescue": {"rescue_image_ref": base.IMAGE}}
                    with contextlib.suppress(client.OpenStackApiException):
                        self.api.post_server_action(server["id"], body)
                    self._wait_for_state_change(server, status)
                self.assertEqual(["domain"], writes)
                self.period()
                if status == "RESCUE":
                    self.assertInventory(used=self.TOTAL)
                    self.perform(server, "unrescue", "ACTIVE")
                else:
                    self.assertEqual([], self.rendered(server))
                    self.assertInventory()
                    self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
                self.assertGPUs(server, self.recorded(server))


class KVMLostDescriptionTest(kvm.KVMServersTestBase):
    """What a config drive says of the GPUs, saved before the guest starts"""

    def test_description(self) -> None:
        self.start_host()
        self.flags(vendordata_providers=["DynamicJSON"], group="api")
        self.flags(force_config_drive=True)
        name = "nova.virt.libvirt.driver.LibvirtDriver._create_configdrive"
        self.useFixture(fixtures.MonkeyPatch(name, lambda *args, **kwargs: None))
        for failure in FAILURES:
            with self.subTest(failure=failure.__name__):
                status = "ACTIVE" if failure is _twice else "ERROR"
                with failing("description", failure) as writes:
                    server = self.boot(self.gpu_flavor(2), expected_state=status)
                self.assertEqual(["description"], writes)
                self.period()
                self.assertInventory(total=len(kvm.ALL), used=2 * (status == "ACTIVE"))
                rest = self.boot(self.gpu_flavor(1))
                self._delete_server(rest)
                self._delete_server(server)


class LXCFailedRebuildTest(FailedRebuild, base.GPUServersTestBase):
    pass


class KVMFailedRebuildTest(FailedRebuild, kvm.KVMServersTestBase):
    pass


class LXCLostWritesTest(LostWrites, base.GPUServersTestBase):
    pass


class KVMLostWritesTest(LostWrites, kvm.KVMServersTestBase):
    pass
