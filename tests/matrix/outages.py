# SPDX-License-Identifier: Apache-2.0
"""What becomes of one call to the outside: to Placement, another service, libvirt or a process.

The calls of an operation have names and numbers, whoever makes them. The one that is meant fails,
or is made and its answer is lost, or it is made twice, or the service that makes it dies there.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import errno
import functools
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fixtures
import oslo_messaging
import requests
from keystoneauth1 import exceptions as keystone_exceptions
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional import fixtures as nova_fixtures
from oslo_messaging.rpc import client as rpc_client
from sqlalchemy import engine, event

from nova_gpu.host import child_process
from tests.fixtures import failing_calls, libvirt
from tests.matrix import threads


class Way(enum.StrEnum):
    COUNT = "count"  # none
    FAIL = "fail"
    LOST = "lost"
    TWICE = "twice"
    DIE = "die"


# In the place of a way: each call in each way, or as many of these as the number says
EACH = "each"
_FILE = "file"
# By boundary
WAYS: Mapping[str, tuple[Way, ...]] = {
    "placement": (Way.FAIL, Way.LOST, Way.TWICE, Way.DIE),
    "call": (Way.FAIL, Way.LOST, Way.DIE),
    "cast": (Way.FAIL, Way.LOST, Way.TWICE, Way.DIE),
    "libvirt": (Way.FAIL, Way.LOST, Way.DIE),
    "process": (Way.FAIL, Way.LOST, Way.DIE),
    _FILE: (Way.FAIL,),
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A call to the outside. ``is_of_host``: whether a compute host has made it."""

    boundary: str
    name: str
    is_of_host: bool = True

    @property
    def ways(self) -> Sequence[Way]:
        """The ways it may go; the death of another service is a failure to the rest."""
        return [way for way in WAYS[self.boundary] if self.is_of_host or way is not Way.DIE]


_DOMAIN = (
    *("create", "createWithFlags", "destroy", "undefine", "undefineFlags", "shutdown", "suspend"),
    *("resume", "managedSave", "attachDeviceFlags", "detachDeviceFlags", "migrateToURI3"),
)
_CONNECTION = ("defineXML", "nodeDeviceCreateXML")


class Died(BaseException):
    """The end of a service's process: it reaches nothing any more."""


class Calls(fixtures.Fixture):
    """The calls of the operation that goes on. To be used before the services start.

    ``made``: all calls of the last operation; ``is_hit``: whether those that are meant were among
    them; ``dead``: the hosts whose nova-compute has died in it; ``held``: messages that came for
    these since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Call] = []
        self.dead: set[str] = set()
        self.held: list[tuple[str, Any]] = []
        self._way = Way.COUNT
        self._targets = [""]
        self.is_hit = False
        self._is_counting = False
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    def _setUp(self) -> None:
        # In the place of what Nova's report client has for these when a test's Placement runs
        for verb in ("get", "put", "post", "delete"):
            around = functools.partial(self._request, verb)
            self._patch(nova_fixtures.PlacementFixture, f"_fake_{verb}", around)
        # Not of its base class: Nova's CastAsCallFixture leaves it a method of its own.
        for verb in ("call", "cast"):
            self._patch(rpc_client._CallContext, verb, functools.partial(self._message, verb))
        for owner, names in ((libvirt.Domain, _DOMAIN), (libvirt.QEMUConnection, _CONNECTION)):
            for name in names:
                self._patch(owner, name, functools.partial(self._of_libvirt, name))
        for name in _CONNECTION:
            self._patch(libvirt.Connection, name, functools.partial(self._of_libvirt, name))
        self._patch(child_process, "run", self._process)
        self.useFixture(threads.HostByThread()).answer = self._answer
        event.listen(engine.Engine, "before_cursor_execute", self._statement)
        self.addCleanup(event.remove, engine.Engine, "before_cursor_execute", self._statement)

    def _patch(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        do = getattr(owner, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            return around(do, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(f"{_path(owner)}.{name}", called))

    @contextlib.contextmanager
    def during(
        self, way: Way, call: str = "", folder: pathlib.Path | None = None
    ) -> Iterator[None]:
        """The operation: its *call* goes the *way*.

        :param call: its name, or those of several, joined by ``+``
        :param folder: system calls on what is below it are calls, too, named ``file``
        """
        self.made.clear()
        self.is_hit = False
        self._way, self._targets, self._is_counting = way, call.split("+"), True
        name, _, number = call.partition(".")
        try:
            if folder is None:
                yield
            elif name == _FILE:
                with failing_calls.one(folder, int(number or 1), errno.EIO):
                    yield
                    self.is_hit = failing_calls.is_failing()
            else:
                with failing_calls.noted(folder) as noted:
                    yield
                self.made += [Call(_FILE, _FILE)] * len(noted)
        finally:
            self._is_counting = False

    # The boundaries

    def _request(self, verb: str, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        _, caller, url, *_ = args
        if caller is None:  # the test itself
            return do(*args, **kwargs)
        path = str(url).partition("?")[0].split("/")
        name = "-".join([verb.upper(), path[1], *path[3:]])

        def fail() -> requests.Response:
            answer = requests.Response()
            answer.status_code = 503
            answer._content = b'{"errors": [{"status": 503, "detail": "it is down"}]}'
            return answer

        def lose() -> None:
            raise keystone_exceptions.ConnectFailure("the answer was lost")

        return self._call("placement", name, lambda: do(*args, **kwargs), fail, lose)

    def _message(self, verb: str, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = str(args[2])

        def fail() -> None:
            raise oslo_messaging.MessageDeliveryFailure("the broker is down")

        def lose() -> None:
            if verb == "call":
                raise oslo_messaging.MessagingTimeout("no answer came")

        def send() -> Any:
            return do(*args, **kwargs)

        if verb == "call":
            return self._call(verb, name, send, fail, lose)
        return self._call(verb, name, send, fail, lose, is_made_when_lost=False)

    def _of_libvirt(self, name: str, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def fail() -> None:
            raise libvirt.error("it failed", fakelibvirt.VIR_ERR_INTERNAL_ERROR)

        if getattr(self._of_thread, "is_inside", False):  # libvirt's own
            return do(*args, **kwargs)
        self._of_thread.is_inside = True
        try:
            return self._call("libvirt", name, lambda: do(*args, **kwargs), fail, fail)
        finally:
            self._of_thread.is_inside = False

    def _process(self, do: Callable[..., bytes], *args: Any) -> Any:
        def fail() -> None:
            raise child_process.Failed("ended with -9: no message")

        def lose() -> None:
            raise child_process.Failed("ended with 1: no message")

        return self._call("process", "process", lambda: do(*args), fail, lose)

    def _call(
        self,
        boundary: str,
        name: str,
        make: Callable[[], Any],
        fail: Callable[[], Any],
        lose: Callable[[], Any],
        *,
        is_made_when_lost: bool = True,
    ) -> Any:
        self._expect_alive()
        way = self._count(boundary, name)
        if way is Way.FAIL:
            return fail()
        if way is Way.DIE:
            if host := threads.host():
                self.dead.add(host)
                raise Died
            return fail()
        if way is Way.LOST:
            if is_made_when_lost:
                make()
            return lose()
        if way is Way.TWICE:
            make()
        return make()

    def _count(self, boundary: str, name: str) -> Way | None:
        with self._lock:
            if not self._is_counting:
                return None
            number = 1 + sum(name == made.name for made in self.made)
            self.made.append(Call(boundary, name, threads.host() is not None))
            if _numbered(name, number) not in self._targets:
                return None
            names = {text for text, _ in numbered(self.made)}
            self.is_hit = names.issuperset(self._targets)
            return self._way

    # Death

    def _expect_alive(self) -> None:
        if threads.host() in self.dead:
            raise Died

    def _statement(self, *args: Any) -> None:
        self._expect_alive()

    def _answer(self, host: str | None, answer: Callable[[], Any], incoming: Any) -> Any:
        """Let nobody wait for a service that is dead; what is cast waits for the next one."""
        if host in self.dead:
            if incoming._reply_q is None:
                self.held.append((host, incoming))
                return None
            raise oslo_messaging.MessagingTimeout("it is dead")
        try:
            return answer()
        except Died:
            raise oslo_messaging.MessagingTimeout("it has died") from None


def numbered(made: Sequence[Call]) -> Iterator[tuple[str, Call]]:
    """Yield each call with its name as an outage has it."""
    counts: collections.Counter[str] = collections.Counter()
    for call in made:
        counts[call.name] += 1
        yield _numbered(call.name, counts[call.name]), call


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}.{number}"


def _path(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(owner.__name__)
