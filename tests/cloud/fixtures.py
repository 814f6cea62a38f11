# SPDX-License-Identifier: Apache-2.0
"""What lets Nova's own test base meet a real host and a real libvirt."""

from __future__ import annotations

import threading
from typing import Any, BinaryIO

import fixtures
import libvirt
import nova.privsep
from nova.tests.fixtures import glance
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


class KeptUploads(fixtures.Fixture):
    """What Nova uploads as the content of an image is there when it is asked for.

    Nova's fixture forgets the content of an image that was made before, as a snapshot's is.
    """

    def _setUp(self) -> None:
        update = glance.GlanceFixture.update

        def kept(
            self: glance.GlanceFixture,
            context: Any,
            image_id: str,
            metadata: dict[str, Any],
            data: BinaryIO | None = None,
            purge_props: bool = False,
        ) -> Any:
            if data is not None:
                self._imagedata[image_id] = content = data.read()
                metadata = {**metadata, "size": len(content)}
            return update(self, context, image_id, metadata, purge_props=purge_props)

        self.useFixture(fixtures.MockPatchObject(glance.GlanceFixture, "update", kept))
