# SPDX-License-Identifier: Apache-2.0
"""Each write to Placement, Nova's database and libvirt: lost, without an answer, refused, repeated.

What the database, the domain and Placement say is the same after the next period, without a
restart. All else is Nova's own write, which Nova repeats or answers with an error: the provider
tree, the claim, the definition and start of a guest, its removal. ``openstack gpu`` is in
test_killed: a command that gets no answer ends, and is run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exceptions
from nova import objects
from nova.cmd import manage
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import guest as libvirt_guest
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.virt.delivery import container_domain
from tests.fixtures import libvirt
from tests.functional import alone, base, failing_steps, kvm, profiled
from tests.functional.profiled import FIRST, slots
from tests.functional.readings import Server

Write = Callable[..., Any]
Failure = Callable[..., Any]


def _any(*args: Any, **kwargs: Any) -> bool:
    return True


def _is_record(save: Any, *args: Any, **kwargs: Any) -> bool:
    return "resources" in save.obj_what_changed()


def _is_task(save: Any, *args: Any, **kwargs: Any) -> bool:
    return save.task_state == "powering-off" and kwargs.get("expected_task_state") == [None]


def _is_end_of_task(save: Any, *args: Any, **kwargs: Any) -> bool:
    return save.task_state is None and kwargs.get("expected_task_state") == ["powering-off"]


# By name, whose method it is and of which calls
WRITES: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "allocation": (report.SchedulerReportClient, "put_allocations", _any),
    "record": (objects.Instance, "save", _is_record),
    "task": (objects.Instance, "save", _is_task),
    "end of the task": (objects.Instance, "save", _is_end_of_task),
    "domain": (libvirt_host.Host, "write_instance_config", _any),
    "fault": (objects.InstanceFault, "create", _any),
    "end": (libvirt_guest.Guest, "poweroff", _any),
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


def _break() -> None:
    text = "Cannot recv data: Connection reset by peer"
    raise libvirt.error(text, fakelibvirt.VIR_ERR_SYSTEM_ERROR)


def _libvirt_does_not_answer(write: Write, *args: Any, **kwargs: Any) -> None:
    write(*args, **kwargs)
    _break()


def _libvirt_is_lost(write: Write, *args: Any, **kwargs: Any) -> None:
    _break()


def _libvirt_refuses(write: Write, *args: Any, **kwargs: Any) -> None:
    text = "internal error: Some processes refused to die"
    raise libvirt.error(text, fakelibvirt.VIR_ERR_INTERNAL_ERROR)


def _libvirt_has_done_it(write: Write, *args: Any, **kwargs: Any) -> None:
    write(*args, **kwargs)
    text = "Requested operation is not valid: domain is not running"
    raise libvirt.error(text, fakelibvirt.VIR_ERR_OPERATION_INVALID)


FAILURES = (_no_answer, _lost, _twice)
ENDS = (_libvirt_does_not_answer, _libvirt_is_lost, _libvirt_refuses, _libvirt_has_done_it)
ALLOCATION_FAILURES = (*FAILURES, _refused, _done_and_refused)
CASES = [
    *((w, failure) for w in ("record", "domain") for failure in FAILURES),
    *(("allocation", failure) for failure in ALLOCATION_FAILURES),
]


@contextlib.contextmanager
def failing(write: str, failure: Failure, *, once: bool = True) -> Iterator[list[str]]:
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


class KVMStopsTest(alone.Alone, kvm.KVMServersTestBase):
    """An instance that gives all cards of its host back when it is stopped"""

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        specs = {"gpus": f"= {self.TOTAL}", "gpu:on_stop": "release"}
        self.server = self.boot(self.flavor(**specs))
        self.every = self.recorded(self.server)

    def assertNothing(self) -> None:
        self.assertEqual("SHUTOFF", self._show_server(self.server)["status"])
        self.assertEqual([], self.recorded(self.server))
        self.assertEqual([], self.rendered(self.server))
        self.assertEqual({}, self.allocated(self.server))
        self.assertInventory()

    def assertStarts(self) -> None:
        self._start_server(self.server)
        self.assertGPUs(self.server, self.every)

    def act(self, act: Callable[[Server], None]) -> None:
        """Do it, whatever comes of it."""
        with contextlib.suppress(Exception):
            act(self.server)
        self.assertIsNone(self.instance(self.server).task_state)

    def test_stop(self) -> None:
        for write, failure in CASES:
            with self.subTest(write=write, failure=failure.__name__):
                with failing(write, failure) as failed:
                    self.act(self._stop_server)
                self.assertEqual([write], failed)
                self.period()
                self.assertNothing()
                self.assertStarts()

    def test_period(self) -> None:
        """What a stop could not do, one period begins, and the next service ends."""
        for write in ("allocation", "record", "task", "end of the task", "domain"):
            for failure in (_no_answer, _lost):
                with self.subTest(write=write, failure=failure.__name__):
                    with failing("domain", _lost):
                        self.act(self._stop_server)
                    self.assertEqual(self.every, self.recorded(self.server))
                    with failing(write, failure) as failed:
                        self.period()
                    self.assertEqual([write], failed)
                    self.restart_host("host1")  # it does not remember
                    self.period()
                    self.assertNothing()
                    self.assertStarts()

    def test_start(self) -> None:
        self._stop_server(self.server)
        for write, failure in CASES:
            # The record is saved again by Nova, with its own save of the instance.
            for once in {"allocation": (True, False), "record": (True,)}.get(write, ()):
                with self.subTest(write=write, failure=failure.__name__, once=once):
                    with failing(write, failure, once=once) as failed:
                        self.act(self._start_server)
                    self.assertIn(write, failed)
                    self.period()
                    if self._show_server(self.server)["status"] == "SHUTOFF":
                        self.assertNothing()
                        self._start_server(self.server)
                    self.assertGPUs(self.server, self.every)
                    self._stop_server(self.server)
                    self.assertNothing()


class EndedMoveTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def test_novas_own_audit_frees_no_gpu(self) -> None:
        """Of a move whose instance is gone it deletes the rest, and the next period the GPUs."""
        self.flags(allow_resize_to_same_host=True)
        server = self._resize_server(self.boot(self.gpu_flavor(2)), self.gpu_flavor(4))
        lost = f"{failing_steps.RPC}.finish_revert_resize"
        with fixtures.MonkeyPatch(lost, lambda *args, **kwargs: None):
            self.api.post_server_action(server["id"], {"revertResize": None})
        self._delete_server(server)
        self.assertEqual(4, manage.PlacementCommands().audit(delete=True))
        self.assertInventory(used=2)
        self.period()
        self.assertInventory(used=0)


class LostReasonTest(profiled.ProfiledServersTestBase):
    def test_fault(self) -> None:
        """Nova's conductor drops why no host started the guest."""
        self.start_host("host1")
        self.connection().says = lambda xml: "cannot set up guest memory: Cannot allocate memory"
        for failure in FAILURES:
            server = self.boot(self.of_type(1155), expected_state="ERROR")
            with failing("fault", failure) as failed:
                self.period()
            self.assertEqual(["fault"], failed)
            self.period()
            fault = self._show_server(server)["fault"]["message"]
            self.assertIn("too little free memory for the guest", fault)
            self._delete_server(server)
        self.connection().says = lambda xml: None
        self.assertVGPUs(self.boot(self.of_type(1155)), slots(1155, FIRST[0]))


class LostEndsTest(alone.Alone, base.GPUServersTestBase):
    """libvirt says of a connection that breaks that it cannot tell, and refuses to end a domain
    that does not run. A container's processes are waited for before Nova ends it itself."""

    def test_a_guest_that_is_rebooted_and_deleted(self) -> None:
        self.useFixture(fixtures.MockPatchObject(container_domain, "libvirt", fakelibvirt))
        self.useFixture(fixtures.MockPatchObject(container_domain, "_PAUSE_S", 0.01))
        self.start_host()
        self.boot(self.gpu_flavor(1))
        for failure in ENDS:
            with self.subTest(failure=failure.__name__):
                server = self.boot(self.gpu_flavor(7))
                with failing("end", failure) as ends:
                    self._reboot_server(server, hard=True)
                self.assertEqual(["end"], ends)
                self.assertGPUs(server, base.ALL[1:])
                with failing("end", failure) as ends:
                    self._delete_server(server)
                self.assertEqual(["end"], ends)
                self.period()
                self.assertEqual(1, len(self._domains("host1")))
                self.assertInventory(used=1)
