# SPDX-License-Identifier: Apache-2.0
"""All pairs of what changes the ledger, interleaved: no device is in nobody's hands while its guest
runs, in two guests' at once, or in a guest's while it is cleaned.

What a guest has is read from libvirt's domains here, and never from the ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import unittest
from collections.abc import Callable, Collection, Iterator, Sequence

from nova import objects
from oslo_utils.fixture import uuidsentinel

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.inventory import pool
from nova_gpu.virt.usage import domains, reader
from nova_gpu.virt.usage.ledger import Ledger, Snapshot
from nova_gpu.virt.usage.records import Records
from tests.fixtures import cards, turns

A, B = cards.addresses("0000:04:00.0", "0000:05:00.0")


class WatchedLedger(Ledger):
    """One whose reading outside of its lock is a step of its own."""

    turns: turns.Turns | None = None

    @property
    def _now(self) -> Snapshot:
        if self.turns and not self._lock.is_held:
            self.turns.pause("read")
        return self._snapshot

    @_now.setter
    def _now(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot


@dataclasses.dataclass
class Domain:
    uuid: str
    device: PciAddress

    def get_xml_desc(self, dump_inactive: bool = False) -> str:
        node = f"/dev/{self.device}"
        return (
            f"<domain id='7'><devices><hostdev type='misc'><source><char>{node}</char></source>"
            "</hostdev></devices></domain>"
        )


class Host:
    """A compute host: its libvirt, its database, its ledger, and what is done to it.

    ``is_deaf``: its libvirt does not answer.
    """

    def __init__(self) -> None:
        self.turns: turns.Turns | None = None
        self.domains: dict[str, Domain] = {}
        self.recorded: dict[str, PciAddress] = {}
        self.assigned: set[objects.Resource] = set()  # the tracker's
        self.busy: set[str] = set()
        self.cleaning: set[PciAddress] = set()
        self.dirty: set[PciAddress] = set()
        self.is_deaf = False
        self.ledger = WatchedLedger()
        self.claims: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        parts = domains.Parts({f"/dev/{address}": address for address in (A, B)}, {})
        self.usage_reader = reader.UsageReader(self, self.ledger, lambda: parts)

    def watch(self, watched: turns.Turns) -> None:
        self.turns = self.ledger.turns = watched
        self.ledger._lock = turns.Lock(watched, "ledger")
        self.claims = turns.Lock(watched, "claim")  # Nova's COMPUTE_RESOURCE_SEMAPHORE
        self.usage_reader._looking = turns.Lock(watched, "libvirt is asked")

    def pause(self, step: str) -> None:
        if self.turns:
            self.turns.pause(step)

    # libvirt

    def list_guests(self, only_running: bool = True) -> list[Domain]:
        if self.is_deaf:
            raise exception.DomainsUnreadable("no answer")
        guests = list(self.domains.values())
        self.pause("libvirt has answered")
        return guests

    def appear(self, uuid: str, device: PciAddress) -> None:
        self.pause(f"the domain of {uuid} appears")
        if device in self.cleaning:
            raise AssertionError(f"{uuid} gets {device} while it is cleaned")
        if others := [domain.uuid for domain in self.domains.values() if domain.device == device]:
            raise AssertionError(f"{uuid} and {others} have {device}")
        self.domains[uuid] = Domain(uuid, device)
        self.dirty.add(device)

    def vanish(self, uuid: str) -> None:
        self.pause(f"the domain of {uuid} goes")
        del self.domains[uuid]

    # nova-gpu, as in lifecycle and live_migration

    @contextlib.contextmanager
    def hold(self, uuid: str, devices: Collection[PciAddress]) -> Iterator[None]:
        kept_devices = self.ledger.now.kept_by(uuid)
        with self.ledger.hold(
            uuid, frozenset(devices), self.usage_reader.look_at_domains, kept_devices
        ):
            self.ledger.was_used(devices)
            yield

    def release(self, device: PciAddress) -> None:
        with contextlib.suppress(exception.DeviceUnavailable), self.ledger.clean(device):
            if users := [
                domain.uuid for domain in self.domains.values() if domain.device == device
            ]:
                raise AssertionError(f"{device} is cleaned while {users} have it")
            self.cleaning.add(device)
            self.pause(f"{device} is cleaned")
            self.cleaning.remove(device)
            self.dirty.discard(device)
            self.ledger.cleaned(device)

    def records(self, guests: Collection[str]) -> Records:
        self.pause("the database answers")
        counted = {uuid: frozenset({("provider", str(d))}) for uuid, d in self.recorded.items()}
        return Records(counted, frozenset(self.busy))

    # What is done to an instance, or to the host

    def claim(self, uuid: str, device: PciAddress) -> bool:
        """Whether it gets *device*, as it is the only one"""
        with self.claims:
            known = {resource.identifier for resource in self.assigned}
            self.ledger.compare([] if str(device) in known else [device], self.assigned)
            usage = self.ledger.now
            if device in usage.taken() | usage.used:
                return False
            if device in self.dirty:
                raise AssertionError(f"{uuid} may have {device}, which is not clean")
            self.ledger.claim([device], [], self.assigned, 60)
            self.assigned.add(pool.resource(uuidsentinel.provider, device))
            self.recorded[uuid] = device
            return True

    def boot(self, uuid: str, device: PciAddress) -> None:
        self.busy.add(uuid)
        if self.claim(uuid, device):
            self.start(uuid, device)
        self.busy.remove(uuid)

    def start(self, uuid: str, device: PciAddress) -> None:
        """With what the database says, which may be another's in truth"""
        with contextlib.suppress(exception.DeviceUnavailable), self.hold(uuid, [device]):
            self.appear(uuid, device)

    def failed_start(self, uuid: str, device: PciAddress) -> None:
        with contextlib.suppress(exception.DeviceUnavailable, OSError), self.hold(uuid, [device]):
            raise OSError("QEMU does not start")
        self.release(device)

    def reboot(self, uuid: str, device: PciAddress) -> None:
        with self.hold(uuid, [device]):
            self.vanish(uuid)
            self.usage_reader.look_again()
            self.appear(uuid, device)

    def rebuild(self, uuid: str, device: PciAddress) -> None:
        self.ledger.keep(uuid, self.ledger.now.had_by(uuid))
        self.vanish(uuid)
        self.usage_reader.look_again()
        with self.hold(uuid, [device]):
            self.appear(uuid, device)

    def delete(self, uuid: str, device: PciAddress) -> None:
        self.vanish(uuid)
        self.usage_reader.look_again()
        self.ledger.end_move(uuid)
        self.recorded.pop(uuid, None)
        self.assigned.discard(pool.resource(uuidsentinel.provider, device))
        self.release(device)

    def arrive(self, uuid: str, device: PciAddress) -> None:
        """As its guest runs elsewhere; its domain appears while nobody holds its device."""
        self.busy.add(uuid)
        if self.claim(uuid, device):
            with contextlib.suppress(exception.DeviceUnavailable):
                with self.hold(uuid, [device]):
                    self.ledger.keep(uuid, [device])
                self.appear(uuid, device)
                self.ledger.keep(uuid, [device])
                with self.hold(uuid, []):
                    pass
        self.busy.remove(uuid)

    def leave(self, uuid: str, device: PciAddress) -> None:
        self.ledger.keep(uuid, [device])
        self.delete(uuid, device)

    def read(self, *_: object) -> None:
        """What runs before and after is somebody's in between."""
        before = {domain.device for domain in self.domains.values()}
        taken = self.ledger.now.taken()
        if lost := before & {domain.device for domain in self.domains.values()} - taken:
            raise AssertionError(f"{lost} are read to be nobody's")

    def period(self, *_: object) -> None:
        self.usage_reader.look_again()
        self.ledger.read_records(self.records)
        for device in sorted(self.ledger.now.left()):
            self.release(device)


Road = Callable[[Host, str, PciAddress], None]
# Of a guest that runs, of one that does not yet, and of the host
RUNNING: Sequence[Road] = (Host.reboot, Host.rebuild, Host.delete, Host.leave)
ABSENT: Sequence[Road] = (Host.boot, Host.start, Host.failed_start, Host.arrive)
OTHERS: Sequence[Road] = (Host.period, Host.read)


class PairsTest(unittest.TestCase):
    def test_no_device_is_nobodys_or_two_guests(self) -> None:
        roads = (*RUNNING, *ABSENT, *OTHERS)
        for first, second in itertools.combinations_with_replacement(roads, 2):
            devices = (A, B) if second in ABSENT else (B,)
            for device in devices:
                with self.subTest(first.__name__, second=second.__name__, device=str(device)):
                    self.assertTrue(self.interleave(first, second, device))

    def interleave(self, first: Road, second: Road, device: PciAddress) -> int:
        """How many orders there are"""
        orders = 0
        for order in turns.each_order(1):
            orders += 1
            host = Host()
            host.period()
            for road, uuid, has in ((first, "one", A), (second, "two", device)):
                if road in RUNNING:
                    host.boot(uuid, has)
            check = functools.partial(self.check, host)
            check(())
            side_by_side = turns.Turns(order, check)
            host.watch(side_by_side)
            side_by_side.run(
                [
                    functools.partial(first, host, "one", A),
                    functools.partial(second, host, "two", device),
                ]
            )
        return orders

    def check(self, host: Host, steps: Sequence[str]) -> None:
        taken = host.ledger._snapshot.taken()
        for domain in host.domains.values():
            self.assertIn(domain.device, taken, f"{domain.uuid} has what is nobody's: {steps}")
