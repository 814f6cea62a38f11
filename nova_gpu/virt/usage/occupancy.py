# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a host are taken, and by whom, as far as anybody knows."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey
from nova_gpu.virt.usage import handed_out, holds
from nova_gpu.virt.usage.records import Records


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """An instance that has a card; its project where the database has said it."""

    instance_uuid: str
    project_id: str | None


# Before the database has answered for the first time
_NONE = Records({})


class Occupancy:
    """What libvirt's domains name, what the database counts, what was just handed out or started.

    Reading those is the caller's; this only keeps what was read last and answers from memory, so
    that a claim never waits for it. What is an address here is a whole card's, or a vGPU's slot.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: holds.Named = {}
        # What of that a running container's nodes lead to, beside what is its own.
        self._reached: holds.Named = {}
        self._records = _NONE
        self._started: dict[str, frozenset[Device]] = {}
        self.handed_out = handed_out.HandedOut()
        # Of instances whose domain went to come back, also cards that another way of Nova's gave;
        # and of those that are on their way here, or from here, while their guest runs.
        self._rebuilding: dict[str, frozenset[Device]] = {}
        self._holds = holds.Holds()
        # What a guest has or had and what was not cleaned since.
        self._used: set[Device] = set()

    def saw_domains(self, named: holds.Named, reached: holds.Named = MappingProxyType({})) -> None:
        """The GPUs that the domains name, by the domain's uuid.

        :param reached: those of them that are not the domain's own, as
            :class:`nova_gpu.virt.usage.domains.Named` has them
        """
        with self._lock:
            self._named = named
            self._reached = {uuid: each for uuid, each in reached.items() if each}
            self._used.update(*named.values())

    def read_records(self, read: Callable[[Collection[str]], Records]) -> None:
        """Takes what the database counts now.

        A guest that was started before the database was asked is in its answer, or is nobody's
        unless its start or another task of the instance is under way: then a later answer says it.

        :param read: asks the database, given the uuids of the domains that name GPUs
        """
        with self._lock:
            started, kept = dict(self._started), frozenset(self._rebuilding)
            guests = {uuid for uuid, named in self._named.items() if named}
        asked = time.monotonic()
        records = read(guests)
        if not records.busy:
            self.handed_out.settled(asked)
        starting = self._holds.instances()
        with self._lock:
            if self._records is _NONE:
                # What was before this service is not known: an instance's card may have been used.
                self._used.update(*map(self._addresses, records.counted.values()))
            self._records = records
            for uuid in kept - records.counted.keys():
                self._rebuilding.pop(uuid, None)
            for uuid, addresses in started.items():
                settled = uuid not in records.busy or addresses <= self._counted(uuid)
                # Another start of the same instance, since then, is another set.
                if settled and uuid not in starting and self._started.get(uuid) is addresses:
                    del self._started[uuid]

    def taken(self) -> frozenset[Device]:
        """What no claim may draw. Read as a GPU goes: handed out, held, then named."""
        found = self.handed_out.waiting() | self._holds.held()
        with self._lock:
            found = found.union(*self._named.values(), *self._rebuilding.values())
        return found | self._holds.held()  # again: when its domain is gone, it is held for cleaning

    @contextlib.contextmanager
    def hold(
        self,
        instance_uuid: str,
        addresses: frozenset[Device],
        look: Callable[[], holds.Named],
        kept: frozenset[Device] = frozenset(),
    ) -> Iterator[None]:
        """Holds *addresses* while a guest is started with them; then libvirt names them.

        :param kept: what else the guest has, that Nova counts for it in another way than ours
        :raises DeviceUnavailable: when another start or domain has one of them
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._holds.hold(instance_uuid, addresses | kept, look))
            finally:
                # Held from here on; or refused, and then the claim is given up as well.
                self.handed_out.drop(addresses)
            with self._lock:
                before = self._rebuilding.get(instance_uuid)
                if addresses:
                    self._started[instance_uuid] = addresses
            try:
                yield
            finally:
                with self._lock:
                    if self._rebuilding.get(instance_uuid) is before:
                        self._rebuilding.pop(instance_uuid, None)

    @contextlib.contextmanager
    def clean(self, address: Device) -> Iterator[None]:
        """Reserve a card that a guest had while it is cleaned.

        :raises DeviceUnavailable: when a start or a domain has it, or it is being cleaned already
        """
        with self._holds.clean(address, lambda: self._named):
            yield

    def being_cleaned(self) -> frozenset[Device]:
        """What is between two guests now"""
        return self._holds.being_cleaned()

    def cleaned(self, address: Device) -> None:
        """Forget that a guest had the card, and what was read of it before that."""
        with self._lock:
            self._used.discard(address)
            for uuid, started in self._started.items():
                if address in started:
                    self._started[uuid] = started - {address}
            if self._records is not _NONE:
                self._records = self._records.without(str(address))

    def was_used(self, addresses: Iterable[Device]) -> None:
        """A guest gets them now, or had them before this service was started."""
        with self._lock:
            self._used.update(addresses)

    def used(self) -> frozenset[Device]:
        """What a guest has, or had and was not cleaned since."""
        with self._lock:
            return frozenset(self._used)

    def left(self) -> frozenset[Device]:
        """The devices that no guest has and the database counts for no instance any more."""
        return self.used() - self.taken() - self.counted()

    def is_starting(self, instance_uuid: str) -> bool:
        return instance_uuid in self._holds.instances()

    def held_for(self, instance_uuid: str) -> frozenset[Device]:
        """What a start of the instance that is under way has seen to be nobody else's."""
        return self._holds.held_for(instance_uuid)

    def recorded(self, key_by_provider: Mapping[str, GroupKey]) -> set[tuple[GroupKey, Device]]:
        """The cards of these providers that the database counts for an instance."""
        with self._lock:
            return {
                (key_by_provider[provider_uuid], device.parse(identifier))
                for recorded in self._records.counted.values()
                for provider_uuid, identifier in recorded
                if provider_uuid in key_by_provider
            }

    def instances(self) -> frozenset[str]:
        """All for which the database counts something here, or nothing"""
        with self._lock:
            return frozenset(self._records.counted)

    def owners(self, key_by_provider: Mapping[str, GroupKey]) -> dict[Device, Owner]:
        """The owners of cards, by the database and by the last starts.

        :param key_by_provider: the host's groups; without any, those before the first provider
            tree, another host's card of the same address may be taken for one of its
        """
        with self._lock:
            projects = self._records.projects
            owners = {
                address: Owner(uuid, projects.get(uuid))
                for uuid, addresses in self._started.items()
                for address in addresses
            }
            for uuid, recorded in self._records.counted.items():
                for provider_uuid, identifier in recorded:
                    if not key_by_provider or provider_uuid in key_by_provider:
                        owners[device.parse(identifier)] = Owner(uuid, projects.get(uuid))
        return owners

    def counted(self) -> frozenset[Device]:
        """All cards that the database counts for an instance here, of whatever group it says."""
        with self._lock:
            return frozenset(each for uuid in self._records.counted for each in self._counted(uuid))

    def had_by(self, instance_uuid: str) -> frozenset[Device]:
        """What the instance's domain named at the last look, or its guest was started with, or is
        kept for it."""
        with self._lock:
            had = (self._named, self._started, self._rebuilding)
            return frozenset[Device]().union(*(each.get(instance_uuid, ()) for each in had))

    def kept_by(self, instance_uuid: str) -> frozenset[Device]:
        """What the instance's domain names, or named before it went to come back."""
        with self._lock:
            nothing = frozenset[Device]()
            named = self._named.get(instance_uuid, nothing)
            # Its next start gets other nodes, and these may be somebody else's own.
            named -= self._reached.get(instance_uuid, nothing)
            return named | self._rebuilding.get(instance_uuid, nothing)

    def reached(self) -> dict[str, frozenset[Device]]:
        """What running guests can open that is not theirs, by the domain's uuid."""
        with self._lock:
            return dict(self._reached)

    def keep(self, instance_uuid: str, addresses: frozenset[Device]) -> None:
        """*addresses* are taken until the instance is started with them or is no longer here."""
        with self._lock:
            self._rebuilding[instance_uuid] = addresses

    def let_go(self, instance_uuid: str) -> None:
        """Stop keeping devices for their instance."""
        with self._lock:
            self._rebuilding.pop(instance_uuid, None)

    def started(self) -> frozenset[Device]:
        """What guests were started with that the database may not count yet."""
        with self._lock:
            return frozenset[Device]().union(*self._started.values())

    def strangers(self) -> dict[Device, str]:
        """The cards named by a domain that Nova does not count for it, with the domain's uuid."""
        with self._lock:
            return {} if self._records is _NONE else self._uncounted()

    def unjudged(self) -> dict[Device, str]:
        """The devices that domains name, and the domains, while the database has not been read."""
        with self._lock:
            return self._uncounted() if self._records is _NONE else {}

    def _uncounted(self) -> dict[Device, str]:
        return {
            address: uuid
            for uuid, named in self._named.items()
            if uuid not in self._started and uuid not in self._records.returning
            for address in named - self._counted(uuid)
        }

    def _counted(self, instance_uuid: str) -> set[Device]:
        return self._addresses(self._records.counted.get(instance_uuid, frozenset()))

    @staticmethod
    def _addresses(recorded: Iterable[tuple[str, str]]) -> set[Device]:
        return {device.parse(identifier) for _, identifier in recorded}
