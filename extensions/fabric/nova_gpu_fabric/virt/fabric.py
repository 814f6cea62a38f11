# SPDX-License-Identifier: Apache-2.0
"""The NVSwitch partitions of a board: their owners, and their activation for guests.

A guest gets all cards of one partition, as whole cards or as vGPUs that occupy a whole card each.
Smaller vGPUs and MIG-backed ones compute without a partition (NVIDIA's Fabric Manager user guide,
"vGPU Virtualization Mode"). Without its partition CUDA fails in the guest with error 802
(kubevirt/kubevirt#16890).

A partition is active from before its guest starts until the guest is gone and its cards are clean.
This state is not stored. It is derived from the owners of the cards in the ledger, and compared
with Fabric Manager's state in every period, before each start and after each release. So it is
correct again after a crash of this service or a restart of Fabric Manager.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping

from oslo_log import log as logging

from nova_gpu.core import device, exception
from nova_gpu.core.card_sets import CardSets, Module
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology.choose import Beside
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot
from nova_gpu.host.pci import nvswitch
from nova_gpu.host.roots import Roots
from nova_gpu.virt.card_sets import Sets, unfit_types
from nova_gpu.virt.usage.ledger import Ledger, Snapshot, State
from nova_gpu_fabric.core import partitions
from nova_gpu_fabric.core.partitions import Partition
from nova_gpu_fabric.core.set_traits import PartitionSets
from nova_gpu_fabric.host import fabric_manager
from nova_gpu_fabric.host.fabric_manager import Refused
from nova_gpu_fabric.virt import board
from nova_gpu_fabric.virt.board import Board
from nova_gpu_fabric.virt.extent import Extent

LOG = logging.getLogger(__name__)

_Functions = tuple[PciAddress, ...]


class Fabric(Sets):
    """The board with NVSwitches of this host, if it has one, and the activation of its partitions.

    :param ledger: nova-compute's record of the devices of each instance; ``None`` in the
        ``nova-gpu`` commands, which change nothing
    """

    def __init__(self, roots: Roots, ledger: Ledger | None) -> None:
        self._roots = roots
        self._modules_file = board.modules_file()
        self._manager = board.manager()
        self._ledger = ledger
        self.board: Board | None = None
        self._seen: frozenset[PciAddress] = frozenset()
        # One thread at a time compares the owners with the active partitions and changes these.
        self._lock = threading.Lock()
        # Partitions whose NVLinks failed. They are left out until this service restarts, so that
        # starts choose other partitions.
        self._broken: set[int] = set()
        # Fabric Manager's mode, inferred from a refusal, for the case that it cannot be read
        self._mode: int | None = None
        self._has_looked = self._has_answered = False
        self._extent = Extent(roots)
        self._faults: list[str] = []

    # State of the host

    @property
    def modules(self) -> Mapping[PciAddress, Module]:
        return self.board.modules if self.board else {}

    def look(self, cards: Collection[GPU]) -> None:
        """Read the board of *cards*, this host's cards, and log new faults.

        The first call in nova-compute also saves the cards' module numbers.
        """
        if self._ledger is not None and not self._has_looked:
            # NVIDIA's driver still has the cards, because no guest has been resumed yet.
            board.keep_modules(cards, self._roots, self._modules_file)
        self._has_looked = True
        self.board = board.read(cards, self._roots, self._modules_file, self._manager)
        if self.board and self.board.mode is None:
            self.board = dataclasses.replace(self.board, mode=self._mode)
        self._has_answered |= self.board is not None and self.board.fault is None
        self._seen = frozenset(gpu.address for gpu in cards)
        faults = self.board.faults() if self.board else []
        for fault in faults:
            if fault not in self._faults:
                LOG.warning("Fault of the NVSwitches or GPUs of this host's board: %s", fault)
        self._faults = faults

    def why_not(self, card: GPU, *, in_parts: bool = False) -> str | None:
        if not in_parts and self.board and (wrong := self.board.wrong_mode(in_parts=False)):
            return str(wrong) if card.address in self._cards else None
        return self._obstacle(card)

    @property
    def _cards(self) -> frozenset[PciAddress]:
        return self.board.cards if self.board else frozenset()

    def _obstacle(self, card: GPU) -> str | None:
        if self.board is None or card.address not in self.board.cards:
            if card.address in self._seen:
                return None
            name = nvswitch.board(card, self._roots)
            return name and f"{name} is a module of an HGX board that has not been read yet"
        if self.board.fault:
            return str(self.board.fault)
        module = self.board.modules.get(card.address)
        if module is None:
            return (
                "its module number is unknown; bind it to NVIDIA's driver and restart "
                "nova-compute, so that NVML reports the number ([gpu]nvml)"
            )
        if not any(module in partition.modules for partition in self._offered()):
            return "Fabric Manager offers no partition with it; see nova-gpu host check"
        return None

    def look_at_parts(self, card: GPU, divided: DividedCard) -> Mapping[str, str]:
        """Record the vGPU types of *card*; return those that no guest can use, with the reason.

        If Fabric Manager has answered before and does not now, types that occupy a whole card stay
        usable, so that a short failure does not remove them from Placement.
        """
        self._extent.look_at_parts(card.address, divided)
        whole = vgpu_capacity.whole_types(divided)
        if not whole or (name := nvswitch.board(card, self._roots)) is None:
            return {}
        reason = nvswitch.out_of_reach(card, self._roots)
        if reason is None and not self._has_answered:
            reason = self._obstacle(card)
        elif reason is None and self.board and (wrong := self.board.wrong_mode(in_parts=True)):
            reason = str(wrong)
        return unfit_types(divided, name, reason)

    def _offered(self) -> list[Partition]:
        """Return the partitions that guests can get.

        The module numbers of all their cards are known, and their activation has not failed because
        of NVLinks since nova-compute started.
        """
        known = frozenset(self.modules.values())
        return [
            partition
            for partition in self._table()
            if partition.modules <= known and partition.id not in self._broken
        ]

    def choose(
        self, free: Collection[PciAddress], count: int, beside: Beside[PciAddress] | None = None
    ) -> tuple[PciAddress, ...] | None:
        """Return *count* of the *free* cards, all of one free partition.

        The partition has *count* cards or, if no such partition is free, more: a claim takes its
        cards one by one, and may take further cards of it. Return ``None`` if no partition is free,
        or one of *free* is not on the board; then the caller chooses any cards.

        :param beside: the costs of a choice by ``gpu:near``; the lowest wins, and among equal ones
            the partition that leaves the most large partitions free
        """
        if self.board is None or not self.board.cards.issuperset(free):
            return None
        offers, taken = self._offered(), self._taken(free)

        def cost(modules: Collection[Module]) -> tuple[int, ...]:
            return beside.cost(self._cards_of(modules)) if beside else ()

        for size in sorted({partition.size for partition in offers if partition.size >= count}):
            if partition := partitions.choose(offers, taken, size, cost):
                return tuple(sorted(self._cards_of(partition.modules))[:count])
        return None

    def offered(
        self, cards: Collection[PciAddress], free: Collection[PciAddress], vgpu_type: str | None
    ) -> CardSets | None:
        if self.board is None or not cards or not self.board.cards.issuperset(cards):
            return None
        if vgpu_type is not None and not all(
            self._extent.is_whole(card, vgpu_type) for card in cards
        ):
            return None
        return PartitionSets(tuple(self._offered()), self._taken(free))

    def unmovable(self, card: PciAddress, slot: Slot) -> str | None:
        if card == slot.parent or self.offered([card], (), slot.type_id) is None:
            return None
        return (
            f"its vGPU {slot} is all of a card that NVSwitches join for it, and nova-gpu activates "
            "no partition for a guest that arrives running"
        )

    def _taken(self, free: Collection[PciAddress]) -> frozenset[Module]:
        return frozenset(module for card, module in self.modules.items() if card not in free)

    def _cards_of(self, modules: Collection[Module]) -> list[PciAddress]:
        return [card for card, module in self.modules.items() if module in modules]

    # Actions

    def join(self, devices: Collection[Device], instance_uuid: str) -> None:
        """Activate the partition for an instance that is about to start with *devices*.

        Do nothing if none of them occupies a whole card of the board.

        :raises BetterElsewhere: if the cards they occupy are not exactly those of a partition
        :raises DeviceUnavailable: if Fabric Manager cannot activate the partition
        """
        if self.board is None or not (
            joined := frozenset(dev for dev in devices if self._extent.card(dev) in self._cards)
        ):
            return
        slots = device.slots(joined)
        try:
            with self._lock:
                if self.board.fault:
                    self._read()
                if wrong := self.board.wrong_mode(in_parts=bool(slots)):
                    raise wrong
                wanted = partitions.exactly(self._offered(), self._modules(joined))
                if wanted:
                    self._activate(wanted, slots, instance_uuid)
        except Refused as error:
            first = min(map(str, joined))
            raise exception.DeviceUnavailable(first, error.reason, error.remedy) from error
        if wanted is None:
            usage = self._ledger.now if self._ledger else None
            away = usage.taken() | usage.counted() if usage else frozenset()
            taken = self._modules(away) - self._modules(joined)
            raise exception.BetterElsewhere(
                None,
                "the NVSwitches cannot join these GPUs for one guest: "
                f"{partitions.refusal(self._offered(), taken, len(joined))}",
                "another host may have a partition",
            )
        LOG.info("Activated NVSwitch partition %s", wanted.id)

    def _activate(self, wanted: Partition, slots: frozenset[Slot], instance_uuid: str) -> None:
        """Activate the partition *wanted* for the instance, unless it is active for it.

        Deactivate partitions without an owner first.

        :param slots: the vGPUs of the instance on the partition's cards; none for whole cards
        :raises Refused: if it cannot be activated
        """
        try:
            self._compare(wanted)
            is_active = wanted.id in self._active()
            if is_active and slots and not self._has(instance_uuid, slots):
                # Fabric Manager does not report the functions that an active partition has. No
                # guest runs there, so deactivate it first.
                self._manager.deactivate(wanted.id)
                is_active = False
            if not is_active:
                self._activate_inactive(wanted, self._functions(slots, wanted))
        except Refused as error:
            self._note(wanted, error, in_parts=bool(slots))
            raise

    def _has(self, instance_uuid: str, slots: frozenset[Slot]) -> bool:
        """Return whether the instance has a domain that was started with these vGPUs."""
        usage = self._ledger.now if self._ledger else None
        return bool(usage and slots <= usage.domains.get(instance_uuid, frozenset()))

    def _activate_inactive(self, wanted: Partition, functions: _Functions) -> None:
        """Activate the partition *wanted*, which is not active.

        If Fabric Manager has restarted, send it the active partitions first.

        :param functions: the virtual functions of the guest's vGPUs, in the order of the
            partition's cards
        """
        manager = self._manager
        try:
            manager.activate(wanted.id, functions)
        except Refused as error:
            if error.code != fabric_manager.NOT_CONFIGURED or self._ledger is None:
                raise
            # Fabric Manager has restarted, and must first be told the active partitions.
            manager.set_active([partition.id for partition, _ in self._of_guests(self._ledger.now)])
            manager.activate(wanted.id, functions)

    def _note(self, wanted: Partition, error: Refused, *, in_parts: bool) -> None:
        LOG.error("Failed to activate NVSwitch partition %s: %s", wanted.id, error)
        if error.code == fabric_manager.NVLINK_ERROR:
            self._broken.add(wanted.id)
        elif error.code == fabric_manager.NOT_SUPPORTED:
            self._mode = fabric_manager.WHOLE_MODE if in_parts else fabric_manager.VGPU_MODE

    def part(self) -> None:
        """Activate the partitions of all guests, and deactivate those that no guest needs.

        A failure is logged, never raised.
        """
        if self._ledger is None or self.board is None or self.board.fault:
            return
        try:
            with self._lock:
                self._compare()
        except Refused as error:
            LOG.warning(
                "Cannot activate and deactivate NVSwitch partitions as guests need them, will "
                "retry in the next period: %s",
                error,
            )

    def _compare(self, wanted: Partition | None = None) -> None:
        """Deactivate the partitions that no guest needs, and activate those of all guests.

        :param wanted: the partition of a guest that is about to start; others that share a card
            with it are deactivated
        """
        if self._ledger is None or self.board is None:
            return
        manager, usage = self._manager, self._ledger.now
        active = self._active()
        guests = {guest.id: (guest, functions) for guest, functions in self._of_guests(usage)}
        try:
            needed = [*(guest for guest, _ in guests.values()), *([wanted] if wanted else [])]
            for number in self._without_owner(active.values(), needed, usage):
                manager.deactivate(number)
                LOG.info("Deactivated NVSwitch partition %s", number)
            for number in sorted(guests.keys() - active.keys()):
                manager.activate(number, guests[number][1])
                LOG.warning("Activated NVSwitch partition %s again, which a guest needs", number)
        except Refused as error:
            if error.code != fabric_manager.NOT_CONFIGURED:
                raise
            manager.set_active(guests.keys())
            LOG.warning("Sent Fabric Manager the active partitions again: %s", [*guests])

    def _active(self) -> Mapping[int, Partition]:
        """Read the partitions from Fabric Manager, and return the active ones by number."""
        return {
            partition.id: partition for partition in self._read().partitions if partition.active
        }

    def _read(self) -> fabric_manager.FabricState:
        """Read Fabric Manager's answer into ``board``, and return it.

        :raises Refused: if it does not answer. The board then records the fault, so that
            :meth:`part` does not query Fabric Manager again before the next :meth:`look`.
        """
        assert self.board is not None
        try:
            fabric = self._manager.read()
        except Refused as error:
            self.board = dataclasses.replace(self.board, fabric=None, fault=error)
            raise
        self.board = dataclasses.replace(self.board, fabric=fabric, fault=None)
        return fabric

    def _without_owner(
        self, active: Iterable[Partition], needed: Collection[Partition], usage: Snapshot
    ) -> list[int]:
        """Return the numbers of the *active* partitions to deactivate.

        They are those that share a card with another, *needed* partition, and those of which no
        instance has all cards and no card is still to be cleaned. Those that share a card with a
        domain whose cards are no partition are left alone.
        """
        owned = [self._modules(devices) for devices in _owned(usage).values()]
        # While cards of a deleted instance are cleaned, Nova's database counts them for it.
        cleaning = self._modules(usage.devices(State.CLEANING))
        unclean = self._modules(usage.used).difference(*owned) | cleaning
        # Leave the cards of two kinds of domains alone: those whose cards are not a partition,
        # because another program started them, and those with virtual functions of unknown size.
        strange = [
            self._modules([*devices, *map(self._extent.physical, device.cards(devices))])
            for devices in usage.domains.values()
            if not partitions.exactly(self._table(), self._modules(devices))
        ]

        def is_kept(partition: Partition) -> bool:
            if any(partition.modules & own for own in strange):
                return True
            if any(
                partition.modules & other.modules for other in needed if other.id != partition.id
            ):
                return False
            return bool(partition.modules & unclean) or any(
                partition.modules <= own for own in owned
            )

        return sorted(partition.id for partition in active if not is_kept(partition))

    def _table(self) -> tuple[Partition, ...]:
        return self.board.fabric.partitions if self.board and self.board.fabric else ()

    def _of_guests(self, usage: Snapshot) -> Iterator[tuple[Partition, _Functions]]:
        """Yield the partition of each libvirt domain that has one.

        With it yield the virtual functions of the domain's vGPUs, in the order of the partition's
        cards.
        """
        for named in usage.domains.values():
            if partition := partitions.exactly(self._table(), self._modules(named)):
                yield partition, self._functions(device.slots(named), partition)

    # The board's modules and functions of devices

    def _modules(self, devices: Iterable[Device]) -> frozenset[Module]:
        """Return the module numbers of the board's cards that *devices* occupy completely."""
        known = self.modules
        return frozenset(
            known[card] for dev in devices if (card := self._extent.card(dev)) and card in known
        )

    def _functions(self, slots: Iterable[Slot], wanted: Partition) -> _Functions:
        """Return the virtual functions of *slots* in the order of the cards of *wanted*."""
        by_module = {module: slot.parent for slot in slots for module in self._modules([slot])}
        return tuple(by_module[module] for module in wanted.order if module in by_module)


def _owned(usage: Snapshot) -> Mapping[str, frozenset[Device]]:
    """Return the devices that each instance has or will need again, by its uuid.

    They are those of its start, its domain, its live migration and the database, and those that are
    reserved while its domain is gone and will come back.
    """
    owners: dict[str, frozenset[Device]] = {}
    for state in (State.STARTING, State.IN_USE, State.MOVING):
        for uuid, devices in usage.users(state):
            owners[uuid] = owners.get(uuid, frozenset()) | devices
    for uuid in {*owners, *usage.instances(), *usage.last_starts}:
        owners[uuid] = owners.get(uuid, frozenset()) | usage.counted_for(uuid) | usage.had_by(uuid)
    return owners
