# SPDX-License-Identifier: Apache-2.0
"""The devices that instances were reported to have got and not to have lost, for billing."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from nova_gpu.core.device import Device
from nova_gpu.core.model import Product
from nova_gpu.virt.usage.ledger import Owner, Snapshot

Products = Mapping[Device, Product]
_NO_PRODUCT: Products = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """The devices that an instance got, and did not lose since, on this host."""

    owner: Owner
    products: Products


class Bills:
    """The open bill of each instance: a device is claimed once, and released once by each service.

    Nova does not tell the driver of each end: not of some failed starts, moves and recoveries, nor
    of one while the service was down. So a bill also ends when neither the database nor a domain
    has the device for the instance.
    """

    def __init__(self) -> None:
        self._open: dict[str, Bill] = {}
        # Devices at the service's start that are in no bill: those of cards that are gone, whose
        # products are unknown, and those of guests that ended elsewhere
        self._unknown: set[tuple[str, Device]] = set()
        self._lock = threading.Lock()  # for starts and deletions in parallel
        self._is_complete = False  # whether what instances had at the service's start is known

    def claim(self, owner: Owner, products: Products) -> Products:
        """Add *products* to the instance's bill; return those that were not in it."""
        with self._lock:
            had = self._had(owner.instance_uuid)
            self._open[owner.instance_uuid] = Bill(owner, {**had, **products})
            return {dev: product for dev, product in products.items() if dev not in had}

    def release(self, owner: Owner, products: Products) -> Products:
        """Remove *products* from the instance's bill; return those that were in it."""
        with self._lock:
            had = self._had(owner.instance_uuid)
            left = {dev: product for dev, product in had.items() if dev not in products}
            if left:
                self._open[owner.instance_uuid] = Bill(owner, left)
            else:
                self._open.pop(owner.instance_uuid, None)
            if not self._is_complete:
                return products
            unknown = self._unknown & {(owner.instance_uuid, dev) for dev in products}
            self._unknown -= unknown
            was_had = had.keys() | {dev for _, dev in unknown}
            return {dev: product for dev, product in products.items() if dev in was_had}

    def begin(self, now: Snapshot, products: Callable[[frozenset[Device]], Products]) -> None:
        """Begin the bills of what instances had when the service started, by the database."""
        if self._is_complete or now.records is None:
            return
        # Also of one that the service was deleting when it died: whether that release was sent, its
        # domain's end does not tell. Sent twice, it ends nothing; lost, the bill would never end.
        for uuid in now.instances():
            # Not what its domain alone has: that may be Nova's own passthrough.
            held = now.counted_for(uuid)
            had = products(held)
            if had:
                self.claim(Owner(uuid, now.records.projects.get(uuid)), had)
            self._unknown.update((uuid, dev) for dev in held.difference(had))
        # A guest that was evacuated, or deleted, while the service was down ends soon.
        for uuid in now.domains.keys() - now.instances():
            self._unknown.update((uuid, dev) for dev in now.domains[uuid])
        self._is_complete = True

    def lost(self, ledger: Callable[[], Snapshot]) -> Iterator[Bill]:
        """Yield what bills have that is no longer the instance's."""
        bills = tuple(self._open.values())
        now = ledger()  # read after the bills: what is in a bill was held before
        if now.records is None:
            return
        for bill in bills:
            held = _held(now, bill.owner.instance_uuid)
            if lost := {dev: p for dev, p in bill.products.items() if dev not in held}:
                yield Bill(bill.owner, lost)

    def _had(self, instance_uuid: str) -> Products:
        bill = self._open.get(instance_uuid)
        return bill.products if bill else _NO_PRODUCT


def _held(now: Snapshot, uuid: str) -> frozenset[Device]:
    """Return the devices of the instance's guest, of its start, and those counted for it."""
    return now.had_by(uuid) | now.held_for(uuid) | now.counted_for(uuid)
