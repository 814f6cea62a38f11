# SPDX-License-Identifier: Apache-2.0
"""Where a cloud contradicts itself: Nova's database, Placement, libvirt and sysfs compared.

:func:`read` takes a snapshot, :func:`differences` compares it, in one pass. Within a period of each
host all must agree; what a test leaves on purpose it names by the kind of the difference.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

from tests.cloud.snapshot import (
    Bill,
    Cell,
    Cloud,
    Device,
    Domain,
    Host,
    Instance,
    Provider,
    Size,
    is_printable,
    read,
    total,
)

__all__ = ["Cloud", "Difference", "differences", "read", "same_outcome", "unchanged"]

# A migration that has one of these counts for nothing any more.
_ENDED = ("cancelled", "completed", "confirmed", "done", "error", "failed", "reverted")
# The type of a cold migration, which keeps the flavor; that of a resize is another.
_MIGRATION = "migration"
_RUNNING = ("active", "rescued")
# The instance is on no host.
_AWAY = "shelved_offloaded"
_OF_HOSTS = ("VCPU", "MEMORY_MB", "DISK_GB")
_GPU_CLASSES = ("PGPU", "VGPU")


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """``who``: an instance's uuid, or the name of a host, provider or project."""

    kind: str
    who: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.who}: {self.text}"


def differences(before: Cloud | None, now: Cloud) -> list[Difference]:
    """Return where *now* contradicts itself.

    :param before: what was there before the first instance of *now*. Where there is none any more
        all that the hosts then have and did not have *before* is a difference, too.
    """
    view = _View(now)
    differences = itertools.chain.from_iterable(judge(view) for judge in _JUDGES)
    return [*differences, *_left(before, view)]


class _View:
    """A snapshot, by who asks it."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.hosts = {host.provider: host for host in cloud.hosts.values()}
        self.moves = {
            migration.uuid: migration
            for migration in cloud.migrations.values()
            if migration.status not in _ENDED
        }
        self.resizes = {
            move.instance: move
            for move in self.moves.values()
            if move.instance in cloud.instances
            and cloud.instances[move.instance].vm_state == "resized"
        }
        # An instance whose resize failed Nova leaves at the destination with what it claimed there,
        # and forgets what it had at the source.
        self.failed = {
            (migration.instance, migration.dest)
            for migration in cloud.migrations.values()
            if migration.status == "error"
            and migration.instance in cloud.instances
            and cloud.instances[migration.instance].vm_state == "error"
        }
        # By consumer and provider
        self.counted: dict[str, dict[str, Mapping[str, int]]] = collections.defaultdict(dict)
        for provider in cloud.providers.values():
            for consumer, amounts in provider.allocations.items():
                self.counted[consumer][provider.uuid] = amounts

    def host_of(self, provider: str) -> Host | None:
        record = self.cloud.providers.get(provider)
        return self.hosts.get(record.root) if record else None

    def is_busy(self, instance: Instance) -> bool:
        """Whether something is going on with it, or its host is down"""
        host = self.cloud.hosts.get(instance.host or "")
        is_down = host is not None and not host.is_up
        return is_down or instance.task_state is not None or instance.vm_state == "building"

    def is_unbuilt(self, instance: Instance) -> bool:
        """Whether its host died while it built it: Nova keeps what it counted for it."""
        is_error = instance.vm_state == "error"
        return is_error and not (instance.host and (instance.is_launched or instance.devices))

    def consumers(self, instance: Instance) -> Iterator[str]:
        """Yield the instance's uuid and those of its moves.

        Nova ends the record of a move before it deletes what the move counts.
        """
        yield instance.uuid
        moves = self.cloud.migrations if self.is_busy(instance) else self.moves
        yield from (move.uuid for move in moves.values() if move.instance == instance.uuid)

    def devices(self, instance: Instance) -> set[Device]:
        """What the instance has, at both ends of a resize. One that is on no host any more keeps
        in the database what it had."""
        if instance.uuid in self.resizes:
            return {*instance.devices, *instance.old, *instance.new}
        # With the end of the move's record it has what the database says, as any other has.
        if (instance.uuid, instance.host) in self.failed and (instance.old or instance.new):
            return {*instance.new}
        return {*instance.devices} if instance.host and instance.vm_state != _AWAY else set()

    def devices_on(self, host: Host, instance: Instance) -> Iterator[Device]:
        for device in self.devices(instance):
            if self.host_of(device.provider) is host:
                yield device


# The database, Placement and the domains


def _devices(view: _View) -> Iterator[Difference]:
    """A guest has what its instance has, and a running guest has all of it."""
    for host in view.cloud.hosts.values():
        for uuid, domain in host.domains.items():
            instance = view.cloud.instances.get(uuid)
            if instance is not None and host.is_up and not instance.task_state:
                yield from _of_domain(view, host, domain, instance)


def _of_domain(view: _View, host: Host, domain: Domain, instance: Instance) -> Iterator[Difference]:
    own = sorted(device.address for device in view.devices_on(host, instance))
    if host.is_container:
        own = sorted(set(own))
    named = [address for address in domain.devices if address not in instance.pci]
    if not domain.is_running:  # the card of a mediated device that a boot removed is unknown
        named = [address for address in named if ":" in address]
    by_stock = _by_stock(view, instance)
    surplus = collections.Counter(named) - collections.Counter(own)
    if surplus.total() > by_stock:
        text = f"its domain on {host.name} has {_words(named)}, and the database {_words(own)}"
        yield Difference("devices", instance.uuid, text)
        return
    if instance.uuid in view.resizes:
        # After a resize on its own host the guest has the new ones only.
        own = sorted(device.address for device in instance.devices)
        if host.is_container:
            own = sorted(set(own))
    lost = collections.Counter(own) - collections.Counter(named)
    if lost and domain.is_running and instance.host == host.name:
        text = f"it runs on {host.name} without {_words(lost)}, which the database has"
        yield Difference("devices", instance.uuid, text)


def _by_stock(view: _View, instance: Instance) -> int:
    """How many vGPUs Placement counts for it that stock Nova gives"""
    return sum(
        amounts.get("VGPU", 0)
        for consumer in view.consumers(instance)
        for provider, amounts in view.counted[consumer].items()
        if not view.cloud.providers[provider].is_of_gpus
    )


def _power(view: _View) -> Iterator[Difference]:
    """An instance that is said to run does, one that is said to be stopped does not."""
    for instance in view.cloud.instances.values():
        host = view.cloud.hosts.get(instance.host or "")
        if host is None or view.is_busy(instance):
            continue
        domain = host.domains.get(instance.uuid)
        runs = domain is not None and domain.is_running
        if instance.vm_state in _RUNNING and not runs:
            yield Difference("power", instance.uuid, f"{instance.vm_state}, and does not run")
        elif instance.vm_state == "stopped" and runs:
            yield Difference("power", instance.uuid, "stopped, and its guest runs")


def _flavors(view: _View) -> Iterator[Difference]:
    """A running instance has as many GPUs as its flavor asks for."""
    for instance in view.cloud.instances.values():
        if instance.vm_state not in _RUNNING or view.is_busy(instance):
            continue
        has = len({*instance.devices}) + _by_stock(view, instance)
        if has != instance.device_count:
            text = f"it is {instance.vm_state} with {has} GPUs, and its flavor asks for"
            yield Difference("flavor", instance.uuid, f"{text} {instance.device_count}")


def _shared(view: _View) -> Iterator[Difference]:
    """No device is of two."""
    for host in view.cloud.hosts.values():
        owners: dict[str, set[str]] = collections.defaultdict(set)
        for instance in view.cloud.instances.values():
            for device in view.devices_on(host, instance):
                owners[device.identifier].add(instance.uuid)
        for domain in host.domains.values():
            # A part is known by its node or uuid, a whole card by its address.
            for name in domain.parts or domain.devices:
                owners[name].add(domain.uuid)
        for name, uuids in sorted(owners.items()):
            is_shared_node = name.startswith("/dev/nvidia") and "cap" not in name
            if len(uuids) > 1 and not (is_shared_node and _is_divided(host, name)):
                yield Difference("shared", host.name, f"{name} is of {_words(uuids)}")


def _is_divided(host: Host, node: str) -> bool:
    """Whether the instances of a card's MIG instances share its node"""
    return any(
        "/" in identifier for identifiers in host.published.values() for identifier in identifiers
    )


def _domains(view: _View) -> Iterator[Difference]:
    """A domain is that of an instance of its host."""
    for host in view.cloud.hosts.values():
        for domain in host.domains.values() if host.is_up else ():
            instance = view.cloud.instances.get(domain.uuid)
            if instance is None:
                text = f"the domain {domain.name} is of no instance"
                yield Difference("domain", host.name, text)
            elif not view.is_busy(instance) and host.name not in _places(view, instance):
                text = f"the domain {domain.name} of an instance of {instance.host}"
                yield Difference("domain", host.name, text)


def _places(view: _View, instance: Instance) -> set[str | None]:
    """The hosts that an instance is on: both of a resize"""
    move = view.resizes.get(instance.uuid)
    return {instance.host, *((move.source, move.dest) if move else ())}


def _allocations(view: _View) -> Iterator[Difference]:
    """Placement counts what the database has, for whom it has it."""
    known = {*view.moves}.union(*map(view.consumers, view.cloud.instances.values()))
    for provider in view.cloud.providers.values():
        for consumer, amounts in provider.allocations.items():
            if consumer not in known:
                text = f"{dict(amounts)} for {consumer}, which is no instance and no move"
                yield Difference("allocation", provider.name, text)
    for instance in view.cloud.instances.values():
        if view.is_busy(instance) or view.is_unbuilt(instance):
            continue
        if len(roots := _roots(view, instance)) > 1:
            # A claim whose answer was lost: "count a new instance once" in upstream.rst
            text = f"Placement counts it on {_words(roots)}, as if it moved"
            yield Difference("doubled", instance.uuid, text)
        else:
            yield from _of_devices(view, instance)
            yield from _of_the_host(view, instance)


def _roots(view: _View, instance: Instance) -> set[str]:
    """The hosts that are up of whose own part the instance has some"""
    return {
        view.hosts[uuid].name
        for uuid in view.counted[instance.uuid]
        if uuid in view.hosts and view.hosts[uuid].is_up
    }


def _of_devices(view: _View, instance: Instance) -> Iterator[Difference]:
    expected = collections.Counter(
        (device.provider, device.resource_class) for device in view.devices(instance)
    )
    counted: collections.Counter[tuple[str, str]] = collections.Counter()
    for consumer in view.consumers(instance):
        for uuid, amounts in view.counted[consumer].items():
            if view.cloud.providers[uuid].is_of_gpus and _is_up(view.host_of(uuid)):
                counted.update({(uuid, name): amount for name, amount in amounts.items()})
    for uuid, name in sorted(expected.keys() | counted.keys()):
        # A class of a model is counted beside PGPU, for the same cards.
        has = expected[uuid, name if name in _GPU_CLASSES else "PGPU"]
        counts = counted[uuid, name]
        if has != counts and _is_up(view.host_of(uuid)):
            text = f"the database has {has} {name} of {_name(view, uuid)}, Placement {counts}"
            yield Difference("allocation", instance.uuid, text)


def _of_the_host(view: _View, instance: Instance) -> Iterator[Difference]:
    """The compute node's part of the allocation"""
    host = view.cloud.hosts.get(instance.host or "")
    expected = dict(instance.parts) if host else {}
    # Nova itself takes all of an instance away that could not be built or rebuilt.
    if instance.vm_state == "error" and not view.counted[instance.uuid] and not instance.devices:
        return
    counted: collections.Counter[str] = collections.Counter()
    for uuid, amounts in view.counted[instance.uuid].items():
        if uuid in view.hosts and view.hosts[uuid].is_up:
            counted.update(amounts)
    counted["VCPU"] += counted.pop("PCPU", 0)
    for name in _OF_HOSTS:
        if expected.get(name, 0) != counted[name]:
            text = f"its flavor has {expected.get(name, 0)} {name}, Placement {counted[name]}"
            yield Difference("compute", instance.uuid, text)


def _usages(view: _View) -> Iterator[Difference]:
    """A project's usage is that of its instances and their moves."""
    for project, usages in view.cloud.usages.items():
        expected = total(
            amounts
            for instance in view.cloud.instances.values()
            if instance.project == project
            for consumer in view.consumers(instance)
            for amounts in view.counted[consumer].values()
        )
        for name in sorted(expected.keys() | usages.keys()):
            if expected[name] != usages.get(name, 0):
                text = f"its instances have {expected[name]} {name}, its usage is"
                yield Difference("usage", project, f"{text} {usages.get(name, 0)}")


def _limits(view: _View) -> Iterator[Difference]:
    for project, limits in view.cloud.limits.items():
        used: collections.Counter[str] = collections.Counter()
        for instance in view.cloud.instances.values():
            if instance.project == project:
                used.update(_counted_or_had(view, instance))
        for name, limit in limits.items():
            if used[name] > limit >= 0:
                text = f"its instances have {used[name]} {name}, its limit is {limit}"
                yield Difference("limit", project, text)


def _counted_or_had(view: _View, instance: Instance) -> Mapping[str, int]:
    """What the database or Placement has of it, whichever is more.

    What was evacuated is counted at the host that is down, too, until that comes back. A migration
    is an administrator's and asks for no quota, in Nova as here: its source is nobody's charge,
    although Placement counts both ends until it is confirmed.
    """
    migrations = {move.uuid for move in view.moves.values() if move.type == _MIGRATION}
    counted = total(
        amounts
        for consumer in view.consumers(instance)
        for uuid, amounts in view.counted[consumer].items()
        if consumer not in migrations and _is_up(view.host_of(uuid))
    )
    move = view.resizes.get(instance.uuid)
    is_migrated = move is not None and move.type == _MIGRATION
    had = instance.devices if is_migrated else view.devices(instance)
    return counted | collections.Counter(device.resource_class for device in had)


# The hosts


def _cards(view: _View) -> Iterator[Difference]:
    """A card is free and offered, or somebody's, or kept back for a reason."""
    for host in view.cloud.hosts.values():
        if not host.is_up:
            continue
        named = {address for domain in host.domains.values() for address in domain.devices}
        for device in sorted(_free(host) & (named | set(_claimed_on(view, host)))):
            yield Difference("offered", host.name, f"{device} is in use, and would be given")
        for card in sorted(host.cards - host.offers - named - host.reasons.keys()):
            yield Difference("lost", host.name, f"{card} is not offered, and nobody says why")
        for provider in view.cloud.providers.values():
            if view.host_of(provider.uuid) is host and provider.uuid in host.published:
                yield from _of_provider(view, host, provider)


def _free(host: Host) -> set[str]:
    return set().union(*host.free.values())


def _claimed_on(view: _View, host: Host) -> Iterator[str]:
    for instance in view.cloud.instances.values():
        yield from (device.identifier for device in view.devices_on(host, instance))


def _of_provider(view: _View, host: Host, provider: Provider) -> Iterator[Difference]:
    published = host.published[provider.uuid]
    for name in _GPU_CLASSES:
        if (inventory := provider.inventories.get(name)) is None:
            continue
        used = sum(amounts.get(name, 0) for amounts in provider.allocations.values())
        # A card has more places for vGPUs than it can have vGPUs.
        is_whole = name == "PGPU"
        if is_whole and inventory.total != len(published):
            text = f"Placement has {inventory.total} {name}, the tracker {_words(published)}"
            yield Difference("inventory", provider.name, text)
        capacity = inventory.total - inventory.reserved - used
        free = host.free[provider.uuid] | host.claimed & published
        # What is counted for an instance that has not got it yet is free for its claim alone.
        left = max(capacity, 0) + sum(_awaited(view, provider, name))
        if capacity > len(free) or (is_whole and len(free) > left):
            text = f"Placement offers {capacity} {name}, a claim would find {_words(free)}"
            yield Difference("hold", provider.name, text)
        if inventory.reserved and is_whole:
            named = {device for domain in host.domains.values() for device in domain.devices}
            known = published & (host.reasons.keys() | named) - {*_claimed_on(view, host)}
            known |= {*_uncounted(view, provider)}
            if inventory.reserved > len(known):
                text = f"{inventory.reserved} {name} are reserved, and there are reasons for"
                yield Difference("reserved", provider.name, f"{text} {_words(known)}")


def _uncounted(view: _View, provider: Provider) -> Iterator[str]:
    """Yield what instances have for which something goes on, and Placement does not count.

    After an evacuation that never began Nova takes away what its host, back again, counted for it.
    """
    for instance in view.cloud.instances.values():
        if view.is_busy(instance) and not provider.allocations.keys() & {*view.consumers(instance)}:
            own = (device for device in view.devices(instance) if device.provider == provider.uuid)
            yield from (device.identifier for device in own)


def _awaited(view: _View, provider: Provider, name: str) -> Iterator[int]:
    """Yield what is counted for each instance and not in the database."""
    for instance in view.cloud.instances.values():
        counted = sum(
            provider.allocations.get(consumer, {}).get(name, 0)
            for consumer in view.consumers(instance)
        )
        had = sum(device.provider == provider.uuid for device in view.devices(instance))
        yield max(counted - had, 0)


def _trackers(view: _View) -> Iterator[Difference]:
    """The usage of a host is the sum of its instances and of what it keeps for itself."""
    for host in view.cloud.hosts.values():
        here = [
            guest for guest in view.cloud.instances.values() if host.name in _places(view, guest)
        ]
        if host.size is None or any(map(view.is_busy, here)) or _is_moving(view, host):
            continue
        size = host.reserved
        cells: dict[int, Cell] = collections.defaultdict(Cell)
        for own, parts in (pair for instance in here for pair in _taken(view, host, instance)):
            size += own
            for number, cell in parts.items():
                cells[number] += cell
        # Nova has whole gigabytes in the database.
        if dataclasses.replace(size, disk_gb=int(size.disk_gb)) != dataclasses.replace(
            host.size, disk_gb=int(host.size.disk_gb)
        ):
            yield Difference("tracker", host.name, f"{host.size}, its instances have {size}")
        if cells != host.cells:
            text = f"its NUMA nodes have {dict(host.cells)}, its instances {dict(cells)}"
            yield Difference("tracker", host.name, text)


def _is_moving(view: _View, host: Host) -> bool:
    """Whether a move has not come to where an owner decides about it"""
    return any(
        host.name in (move.source, move.dest)
        for move in view.moves.values()
        if move.instance not in view.resizes
    )


def _taken(
    view: _View, host: Host, instance: Instance
) -> Iterator[tuple[Size, Mapping[int, Cell]]]:
    if instance.host == host.name and instance.vm_state != _AWAY:
        yield instance.size, instance.cells
    move = view.resizes.get(instance.uuid)
    if move is not None and move.source == host.name:
        yield instance.old_size, instance.old_cells


def _tasks(view: _View) -> Iterator[Difference]:
    """Nothing goes on."""
    for host in view.cloud.hosts.values():
        for task in host.tasks:
            yield Difference("task", host.name, f"{task} has not ended")
    for instance in view.cloud.instances.values():
        host = view.cloud.hosts.get(instance.host or "")
        if instance.task_state is not None and (host is None or host.is_up):
            yield Difference("task", instance.uuid, f"its task {instance.task_state} goes on")


# What is said


def _bills(view: _View) -> Iterator[Difference]:
    """Each claim has its release as soon as the instance has no such device any more.

    A service that died may not know of its release, and the next one repeats it.
    """
    open_ones: dict[tuple[str, str], set[str]] = {}
    ended: dict[tuple[str, str, str], int] = {}
    for bill in view.cloud.bills:
        having = open_ones.get((bill.instance, bill.host))
        if bill.is_claim:
            yield from _claimed(bill, having or set())
            open_ones[bill.instance, bill.host] = (having or set()) | {*bill.addresses}
        elif having is not None:  # else it has them of stock Nova
            keys = {address: (bill.instance, bill.host, address) for address in bill.addresses}
            again = {
                address for address in keys if ended.get(keys[address], bill.starts) < bill.starts
            }
            yield from _released(bill, having | again)
            ended |= dict.fromkeys(keys.values(), bill.starts)
            open_ones[bill.instance, bill.host] = having - {*bill.addresses}
    for (uuid, name), addresses in open_ones.items():
        instance, host = view.cloud.instances.get(uuid), view.cloud.hosts.get(name)
        if host is None or not host.is_up or (instance and view.is_busy(instance)):
            continue
        held = set(view.devices_on(host, instance)) if instance else set[Device]()
        if lost := addresses - {device.identifier for device in held}:
            text = f"{_words(lost)} of {name} were claimed, and never released"
            yield Difference("bill", uuid, text)


def _claimed(bill: Bill, having: set[str]) -> Iterator[Difference]:
    if twice := having & {*bill.addresses}:
        yield Difference("bill", bill.instance, f"{_words(twice)} were claimed twice")


def _released(bill: Bill, having: set[str]) -> Iterator[Difference]:
    if twice := {*bill.addresses} - having:
        yield Difference("bill", bill.instance, f"{_words(twice)} were released twice")


def _texts(view: _View) -> Iterator[Difference]:
    for text in view.cloud.unprintable:
        yield Difference("text", "log", text)
    for instance in view.cloud.instances.values():
        if instance.fault is not None and not is_printable(instance.fault):
            yield Difference("text", instance.uuid, f"its fault is {instance.fault!r}")


_JUDGES: tuple[Callable[[_View], Iterator[Difference]], ...] = (
    *(_devices, _power, _flavors, _shared, _domains, _allocations, _usages, _limits),
    *(_cards, _trackers, _tasks, _bills, _texts),
)


def _left(before: Cloud | None, view: _View) -> Iterator[Difference]:
    """What is on the hosts, and kept back, although there is no instance any more"""
    if view.cloud.instances:
        return
    for host in view.cloud.hosts.values():
        earlier = before.hosts[host.name].left if before and host.name in before.hosts else ()
        for kind, text in host.left:
            if (kind, text) not in earlier:
                yield Difference(kind, host.name, text)
    for provider in view.cloud.providers.values():
        then = before.providers.get(provider.uuid) if before else None
        for name in _GPU_CLASSES:
            if inventory := provider.inventories.get(name):
                known = then.inventories.get(name) if then else None
                if inventory.reserved > (known.reserved if known else 0):
                    text = f"{inventory.reserved} {name} are reserved"
                    yield Difference("reserved", provider.name, text)


# Two operations, or the same one on two instances


def same_outcome(plain: Instance | None, gpu: Instance | None) -> list[Difference]:
    """Return what an instance with GPUs does not survive as one without does.

    :param plain: the instance without GPUs after an operation, ``None`` if it is gone
    :param gpu: the one with GPUs after the same operation
    """
    if gpu is None or plain is None:
        if gpu is plain:
            return []
        who = gpu or plain
        assert who is not None
        there = "is gone" if plain is None else "is there"
        text = f"the one without GPUs {there}, the one with GPUs is not so"
        return [Difference("outcome", who.uuid, text)]
    return [
        Difference("outcome", gpu.uuid, f"its {name} is {own!r}, without GPUs it is {other!r}")
        for name in ("vm_state", "task_state", "power_state")
        if (own := getattr(gpu, name)) != (other := getattr(plain, name))
    ]


def unchanged(before: Cloud, now: Cloud, instance: str) -> list[Difference]:
    """Return what an operation that was refused has changed of the instance with that uuid."""
    then, after = _all_of(before, instance), _all_of(now, instance)
    return [
        Difference("changed", instance, f"its {name} was {then[name]!r}, and is {after[name]!r}")
        for name in then.keys() & after.keys()
        if then[name] != after[name]
    ]


def _all_of(cloud: Cloud, uuid: str) -> dict[str, object]:
    instance = cloud.instances.get(uuid)
    domains = {
        host.name: host.domains[uuid] for host in cloud.hosts.values() if uuid in host.domains
    }
    allocation = {
        provider.name: dict(provider.allocations[uuid])
        for provider in cloud.providers.values()
        if uuid in provider.allocations
    }
    facts: dict[str, object] = {
        "being counted": bool(allocation),
        "domain": {name: domain.is_running for name, domain in domains.items()},
    }
    # GPUs apart: an allocation or a domain that is gone as a whole is gone without GPUs, too.
    if allocation:
        facts["allocation"] = allocation
    facts |= {f"devices on {name}": domain.devices for name, domain in domains.items()}
    names = ("vm_state", "task_state", "power_state", "host", "size", "devices", "cells", "files")
    return facts | {name: getattr(instance, name, None) for name in names}


def _is_up(host: Host | None) -> bool:
    return host is not None and host.is_up


def _name(view: _View, provider: str) -> str:
    record = view.cloud.providers.get(provider)
    return record.name if record else provider


def _words(names: object) -> str:
    assert isinstance(names, collections.abc.Iterable)
    return " ".join(sorted(map(str, names))) or "none"
