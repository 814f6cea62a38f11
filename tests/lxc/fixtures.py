# SPDX-License-Identifier: Apache-2.0
"""What lets Nova's own test base meet a real host and a real libvirt."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import fixtures
import libvirt
import nova.privsep
from nova.tests import fixtures as nova_fixtures
from nova.virt.libvirt import host as libvirt_host

# What Nova's test base does to keep tests off the machine: libvirt, sysfs, uname, privsep.
_POISONS = (
    "GenericPoisonFixture",
    "ImportModulePoisonFixture",
    "PoisonFunctions",
    "PrivsepNoHelperFixture",
    "SysFsPoisonFixture",
)


class _Nothing(fixtures.Fixture):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


class RealHost(fixtures.Fixture):
    """To be used before ``nova.test.TestCase.setUp``: the tests are root and may do everything."""

    def _setUp(self) -> None:
        for name in _POISONS:
            self.useFixture(fixtures.MonkeyPatch(f"nova.tests.fixtures.{name}", _Nothing))
        self.useFixture(
            fixtures.MockPatchObject(nova.privsep.sys_admin_pctxt, "client_mode", False)
        )


class CellByContext(fixtures.Fixture):
    """A targeted context says by itself which cell's database is meant; any other means cell1's.

    Nova's fixture switches a global database as well, under a lock. Where several instances are
    buried in cell0 at once, one thread waits for that lock with a database's in its hands, and
    another the other way round.
    """

    def _setUp(self) -> None:
        self.useFixture(
            fixtures.MockPatchObject(nova_fixtures.CellDatabases, "_wrap_target_cell", _target_cell)
        )


@contextlib.contextmanager
def _target_cell(cells: nova_fixtures.CellDatabases, context: Any, mapping: Any) -> Iterator[Any]:
    with cells._real_target_cell(context, mapping) as targeted:
        yield targeted


class OneEventLoop(fixtures.Fixture):
    """One libvirt event loop in the process, whatever the number of compute services.

    Nova starts a thread for it with every Host, and another that waits for ever for a lost
    connection, on which the end of a test would wait as well.
    """

    _lock = threading.Lock()
    _runs = False

    def _setUp(self) -> None:
        self.useFixture(
            fixtures.MockPatchObject(
                libvirt_host._ThreadingLibvirtEventHandler, "start", self._start
            )
        )
        self.useFixture(
            fixtures.MockPatchObject(libvirt_host.Host, "_conn_event_thread", lambda host: None)
        )

    @classmethod
    def _start(cls) -> None:
        with cls._lock:
            if not cls._runs:
                libvirt.virEventRegisterDefaultImpl()
                threading.Thread(target=cls._run, daemon=True).start()
                cls._runs = True

    @staticmethod
    def _run() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()
