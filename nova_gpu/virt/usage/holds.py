# SPDX-License-Identifier: Apache-2.0
"""No two guests on one GPU, whatever the records say.

The resource tracker rebuilds what it knows from the database in every period, and a claim is in
the database only a moment after it was made; Placement has been seen to let one allocation too many
through under load; after an instance was deleted while its host was down its domain still runs;
and libvirt starts two containers with one device node. So before a guest starts, its GPUs are held:
under one lock it is seen that nobody else has them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device

Named = Mapping[str, frozenset[Device]]


class Holds:
    """The GPUs of the starts in flight and those that are being cleaned, in memory only: libvirt
    names those of all other guests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_instance: dict[str, frozenset[Device]] = {}
        self._cleaned: set[Device] = set()

    def held(self) -> frozenset[Device]:
        with self._lock:
            return frozenset().union(self._cleaned, *self._by_instance.values())

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

        :param named: looks up which GPUs the domains name, by uuid; it is called under the lock,
            because a domain that appears between the look and the hold would be missed
        :raises DeviceUnavailable: when another start or domain has one of them
        """
        with self._lock:
            self._refuse_cleaned(addresses)
            self._refuse_others(instance_uuid, addresses, self._by_instance, "is being started")
            self._refuse_others(instance_uuid, addresses, named(), "names it in its domain")
            before = self._by_instance.get(instance_uuid, frozenset())
            self._by_instance[instance_uuid] = before | addresses
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

        :raises DeviceUnavailable: when a start or a domain has it, or it is being cleaned already
        """
        with self._lock:
            self._refuse_cleaned(frozenset({address}))
            self._refuse_others("", frozenset({address}), self._by_instance, "is being started")
            self._refuse_others("", frozenset({address}), named(), "names it in its domain")
            self._cleaned.add(address)
        try:
            yield
        finally:
            with self._lock:
                self._cleaned.remove(address)

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
