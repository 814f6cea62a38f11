# SPDX-License-Identifier: Apache-2.0
"""No two guests on one GPU, whatever the records say.

The resource tracker rebuilds what it knows from the database in every period, and a claim is in
the database only a moment after it was made; Placement has been seen to let one allocation too many
through under load; after an instance was deleted while its host was down its domain still runs;
and libvirt starts two containers with one device node. So before a guest starts, its GPUs are held:
one start after another it is seen that nobody else has them.

A start waits for libvirt in this, which may take long. Who only reads what is held, as every claim
does, waits for nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device

Named = Mapping[str, frozenset[Device]]

# How long a start waits for another's look at the domains, which takes milliseconds.
_PATIENCE_S = 60.0


class Holds:
    """The GPUs of the starts in flight and those that are being cleaned, in memory only: libvirt
    names those of all other guests."""

    def __init__(self) -> None:
        # Held while a start looks at the domains, and never by who reads.
        self._start = threading.Lock()
        # Held for a moment only.
        self._lock = threading.Lock()
        self._by_instance: dict[str, frozenset[Device]] = {}
        # Of the one start that looks at the domains
        self._wanted: dict[str, frozenset[Device]] = {}
        self._cleaned: set[Device] = set()

    def held(self) -> frozenset[Device]:
        """Also what a start is about to hold, if nobody else has it"""
        with self._lock:
            found = (*self._by_instance.values(), *self._wanted.values())
            return frozenset().union(self._cleaned, *found)

    def being_cleaned(self) -> frozenset[Device]:
        """What is held for nobody"""
        with self._lock:
            return frozenset(self._cleaned)

    def instances(self) -> frozenset[str]:
        """The instances whose guests are being started"""
        with self._lock:
            return frozenset(self._by_instance)

    def held_for(self, instance_uuid: str) -> frozenset[Device]:
        with self._lock:
            return self._by_instance.get(instance_uuid, frozenset())

    @contextlib.contextmanager
    def hold(
        self, instance_uuid: str, addresses: frozenset[Device], named: Callable[[], Named]
    ) -> Iterator[None]:
        """Holds *addresses* for the instance while its guest is started.

        :param named: looks up which GPUs the domains name, by uuid. A domain that appears meanwhile
            is that of a start, which held its GPUs already when this one began to look.
        :raises DeviceUnavailable: when another start or domain has one of them, or other starts
            wait for libvirt and have not had an answer for a minute
        """
        with self._one_start(addresses):
            with self._lock:
                self._refuse_cleaned(addresses)
                self._refuse_others(instance_uuid, addresses, self._by_instance, "is being started")
                self._wanted = {instance_uuid: addresses}  # nobody cleans them meanwhile
            try:
                found = named()
                self._refuse_others(instance_uuid, addresses, found, "names it in its domain")
                with self._lock:
                    before = self._by_instance.get(instance_uuid, frozenset())
                    self._by_instance[instance_uuid] = before | addresses
            finally:
                with self._lock:
                    self._wanted = {}
        try:
            yield
        finally:
            with self._lock:
                del self._by_instance[instance_uuid]
                if before:
                    self._by_instance[instance_uuid] = before

    @contextlib.contextmanager
    def clean(self, address: Device, named: Callable[[], Named]) -> Iterator[None]:
        """Holds a card for nobody while it is cleaned.

        :param named: says at once which GPUs the domains name, by uuid
        :raises DeviceUnavailable: when a start or a domain has it, or it is being cleaned already
        """
        wanted = frozenset({address})
        with self._lock:
            self._refuse_cleaned(wanted)
            self._refuse_others("", wanted, self._by_instance, "is being started")
            self._refuse_others("", wanted, self._wanted, "is being started")
            self._refuse_others("", wanted, named(), "names it in its domain")
            self._cleaned.add(address)
        try:
            yield
        finally:
            with self._lock:
                self._cleaned.remove(address)

    @contextlib.contextmanager
    def _one_start(self, addresses: frozenset[Device]) -> Iterator[None]:
        if not self._start.acquire(timeout=_PATIENCE_S):
            raise exception.DeviceUnavailable(
                ", ".join(sorted(map(str, addresses))),
                "another start has been waiting for libvirt's answer for a minute",
                "see why libvirt does not answer on the host (virsh list --all)",
            )
        try:
            yield
        finally:
            self._start.release()

    def _refuse_cleaned(self, addresses: frozenset[Device]) -> None:
        for address in device.clashing(addresses, self._cleaned):
            raise exception.DeviceUnavailable(
                str(address), "it is being cleaned of its last guest", "try again when it is done"
            )

    @staticmethod
    def _refuse_others(
        instance_uuid: str, addresses: frozenset[Device], others: Named, what: str
    ) -> None:
        for uuid, taken in others.items():
            if uuid != instance_uuid and (clashing := device.clashing(addresses, taken)):
                raise exception.DeviceUnavailable(
                    min(map(str, clashing)),
                    f"another guest {what}",
                    "if Nova knows no instance of its uuid, remove its domain with virsh",
                    uuid,
                )
