# SPDX-License-Identifier: Apache-2.0
"""The inventory of a host's whole cards: published to Placement, and the source of claims."""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from typing import Any

from nova_gpu.core import device, flavor_mismatch, names, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.placement_policy import Topology
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GPU, DeliveryMode, GPUGroup, GroupKey, PciAddress
from nova_gpu.core.placement import inventory
from nova_gpu.core.scheduling.stats import Divided, Reserved
from nova_gpu.core.topology import choose, topology
from nova_gpu.core.topology.choose import Beside
from nova_gpu.core.unavailability import Reasons, Scope
from nova_gpu.virt.delivery import guest_address_space
from nova_gpu.virt.delivery.deliveries import Deliveries
from nova_gpu.virt.health.failed_starts import FailedStarts
from nova_gpu.virt.inventory import card_groups, provider_tree
from nova_gpu.virt.inventory.base_inventory import DeviceInventory, Holding
from nova_gpu.virt.inventory.joined_cards import JoinedCards
from nova_gpu.virt.inventory.neighbours import Neighbours
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.usage.ledger import Ledger, Owner, State


class CardInventory(DeviceInventory[GPUGroup, PciAddress]):
    """The inventory of the whole cards of a host."""

    in_parts = False
    noun = "GPUs"
    _parse = staticmethod(PciAddress.parse)

    def __init__(
        self,
        ledger: Ledger,
        deliveries: Deliveries,
        joined_cards: JoinedCards,
        neighbours: Neighbours,
        failed_starts: FailedStarts,
    ) -> None:
        super().__init__(ledger)
        self._deliveries = deliveries
        self._sets = deliveries.sets
        self._host_hooks = deliveries.host_hooks
        self._joined_cards = joined_cards
        self._neighbours = neighbours
        self._failed_starts = failed_starts
        self._lock = threading.Lock()
        self._groups: card_groups.CardGroups = {}
        # By group, the most cards that one guest can have. It is computed in each period, because a
        # claim, which publishes it too, must not read the host.
        self._most: dict[GroupKey, int] = {}
        # Reasons added since the current inspection began; its result does not include them.
        self._reserved_since: Mapping[PciAddress, Reasons] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def groups(self) -> card_groups.CardGroups:
        return self._groups

    def cards(self) -> list[GPU]:
        return [gpu for group in self._groups.values() for gpu in group.gpus.values()]

    def reserved(self) -> frozenset[PciAddress]:
        """Return the cards that new instances do not get, but an instance that has one keeps."""
        groups = self._groups.values()
        pairs = ((a, own) for group in groups for a, own in group.unavailable.items())
        return frozenset(a for a, own in pairs if any(reason.scope is Scope.NEW for reason in own))

    def present(self) -> frozenset[PciAddress]:
        """Return the addresses of cards without a reason that applies to all instances.

        Such a card exists, and an instance that has it can start with it. If another product
        replaced a card, the address stands for the new card.
        """
        return frozenset(
            address
            for group in self._groups.values()
            for address in group.gpus
            if not unavailability.for_all(group.unavailable.get(address, ()))
        )

    def _unavailable_cards(self, group: GPUGroup) -> frozenset[PciAddress]:
        """Return the cards of *group* that new instances cannot get now, in use or not."""
        others = self._host_hooks.unavailable().keys() | self._failing()
        own = frozenset(address for address, own in group.unavailable.items() if own)
        return own | (others & group.gpus.keys())

    def _failing(self) -> Collection[PciAddress]:
        """Return the cards that new instances do not get because guests fail to start with them."""
        fit = {
            a for group in self._groups.values() for a in group.gpus if not group.unavailable.get(a)
        }
        return self._failed_starts.failing(
            None, fit - self._ledger.now.devices(State.IN_USE)
        ).keys()

    def begin_look(self) -> None:
        """Prepare for an inspection of the host, which ends with :meth:`take_in`.

        Reasons that :meth:`reserve` adds from now on are added to the result of the inspection too.
        """
        self._neighbours.look_again()
        with self._lock:
            self._reserved_since = {}

    def take_in(
        self, gpus: Iterable[GPU], mode: DeliveryMode, unavailable: Mapping[PciAddress, Reasons]
    ) -> None:
        """Update the groups with the result of an inspection, as :func:`card_groups.offered`."""
        with self._lock:
            groups = card_groups.offered(gpus, self._groups, mode, unavailable)
            groups = self._keeping_recorded(groups)
            self._groups = card_groups.reserving(groups, self._reserved_since)
            if not self._deliveries.whole.shares_driver:
                self._most = {
                    key: guest_address_space.most(group.gpus.values(), self._deliveries.roots)
                    for key, group in groups.items()
                }

    def keep_recorded(self) -> None:
        """Move the cards that instances have to the groups of the providers in which they do."""
        with self._lock:
            self._groups = self._keeping_recorded(self._groups)

    def _keeping_recorded(self, groups: card_groups.CardGroups) -> card_groups.CardGroups:
        for key, card in self._recorded(self.provider_uuids):
            for address in device.cards([card]):
                groups = card_groups.keeping(groups, key, address)
        return groups

    def reserve(self, reasons: Mapping[PciAddress, Reasons]) -> None:
        """Add *reasons* against cards at once, and to the result of an inspection in progress."""
        with self._lock:
            self._reserved_since = {**self._reserved_since, **reasons}
            self._groups = card_groups.reserving(self._groups, reasons)

    def given_whole(self) -> frozenset[PciAddress]:
        """Return the cards that instances have whole by the database, or by a start in progress."""
        recorded = {address for _, address in self._recorded(self.provider_uuids)}
        return device.cards(recorded | self._ledger.now.started())

    # Devices of instances

    def _obstacle(self, group: GPUGroup, key: PciAddress) -> str | None:
        if key not in group.gpus:
            return "it is not on this host"
        reason = unavailability.for_all(group.unavailable.get(key, ()))
        return None if reason is None else str(reason)

    def _grant(self, group: GPUGroup, key: PciAddress) -> GPU:
        return group.gpus[key]

    def mismatch(
        self,
        request: FlavorRequest,
        held: Collection[Holding[GPUGroup, PciAddress]],
        hypervisor_type: str,
        *,
        is_new: bool,
    ) -> str | None:
        if not held and not request.asks_for_gpus:
            return None
        whole, facts = request.whole, self._facts(held, hypervisor_type, {})
        reason = flavor_mismatch.gpu_mismatch(whole, facts, hypervisor_type)
        if whole and reason is None and is_new:
            return flavor_mismatch.other_product(whole, facts)
        return reason

    def apart(
        self,
        request: FlavorRequest,
        held: Collection[Holding[GPUGroup, PciAddress]],
        hypervisor_type: str,
    ) -> str | None:
        if request.whole is None or request.whole.arrangement.topology is Topology.ANY:
            return None
        circles = topology.circles([holding.group.gpus[holding.device] for holding in held])
        return flavor_mismatch.apart(request.whole, self._facts(held, hypervisor_type, circles))

    def remote(
        self, held: Collection[Holding[GPUGroup, PciAddress]], claimant: Claimant
    ) -> str | None:
        cells = claimant.affinity()
        nodes = collections.Counter(
            holding.group.gpus[holding.device].numa_node for holding in held
        )
        if cells is None or cells.holds(nodes):
            return None
        free = self.free()
        for group in {holding.group.key: holding.group for holding in held}.values():
            nodes.update(gpu.numa_node for a, gpu in group.gpus.items() if a in free)
        return cells.shortage(len(held), nodes)

    def _facts(
        self,
        held: Collection[Holding[GPUGroup, PciAddress]],
        hypervisor_type: str,
        circles: Mapping[PciAddress, Hashable],
    ) -> list[flavor_mismatch.HeldGPUs]:
        """Return the properties of an instance's cards that are compared with its flavor."""
        return [
            flavor_mismatch.HeldGPUs(
                count=1,
                architecture=holding.group.product.architecture,
                traits=functools.partial(self._traits, holding.group, hypervisor_type),
                model=holding.group.product.name,
                memory_mib=holding.group.product.memory_mib,
                numa_node=holding.group.gpus[holding.device].numa_node,
                circle=circles.get(holding.device),
            )
            for holding in held
        ]

    # Publishing

    def _offer(
        self, present: Mapping[GroupKey, str], hypervisor_type: str
    ) -> tuple[Iterable[GroupKey], Callable[[GPUGroup], provider_tree.ProviderData]]:
        with self._lock:
            for key, card in self._recorded(present):
                for address in device.cards([card]):
                    self._groups = card_groups.including(self._groups, key, address)
            groups, most = self._groups, self._most
        usage = self._ledger.now
        withheld_cards = usage.unjudged().keys() | usage.strangers().keys()
        # A device that one guest reaches and another instance owns stays counted for its owner.
        withheld_cards -= frozenset[Device]().union(*usage.reached.values()) & usage.counted()
        withheld_cards |= usage.uncovered()

        def offer(group: GPUGroup) -> provider_tree.ProviderData:
            used_devices = usage.taken() | usage.counted() | usage.started()
            away = withheld_cards | (self._beside_given() - used_devices)
            reserved = len(self._lost(group) | (away & group.gpus.keys()))
            return provider_tree.ProviderData(
                inventory.inventory(len(group.gpus), reserved, most=most.get(group.key)),
                lambda present: self._traits(group, hypervisor_type, present),
                group.gpus,
                names.model_class(group.product.name),
            )

        return groups, offer

    def _traits(
        self, group: GPUGroup, hypervisor_type: str, present: Iterable[str] = ()
    ) -> frozenset[str]:
        islands = topology.islands(group.gpus.values())
        near = self._neighbours.near(group.gpus.values())
        own = provider_tree.traits(
            group.product, hypervisor_type, present, islands=islands, near=near
        )
        if self._deliveries.reach_each_other(group.gpus.values()):
            own |= {names.peer_access_trait()}
        sets = self._sets.offered(group.gpus.keys(), self.free(), None)
        return own | sets.traits() if sets else own

    def report(self, hypervisor_type: str, reserved: Reserved, divided: Divided) -> str:
        """Return the text of :func:`card_groups.report`."""
        return card_groups.report(
            self._groups,
            hypervisor_type,
            self.free(),
            reserved,
            divided,
            self._sets.room,
            self._neighbours.beside_free,
        )

    def sort_neighbours(self) -> None:
        """Sort Nova's PCI pools: first devices near free cards (:meth:`Neighbours.sort_pools`)."""
        free = self.free()
        self._neighbours.sort_pools(card for card in self.cards() if card.address in free)

    def owners(self) -> dict[Device, Owner]:
        return self._ledger.now.owners({uuid: key for key, uuid in self.provider_uuids.items()})

    def _lost(self, group: GPUGroup) -> set[PciAddress]:
        """Return the cards of *group* that no instance has and no new instance can get."""
        recorded = self._recorded(self.provider_uuids)
        ours = {address for key, address in recorded if key == group.key}
        return set(self._unavailable_cards(group)) - ours - self._ledger.now.started()

    # The pool

    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        self._ledger.compare(addresses, assigned)
        group = self.group_of(provider_uuid)
        schedulable = group.gpus.keys() - self._unavailable_cards(group) if group else frozenset()
        usage = self._ledger.now
        cards = device.cards(device.parse(resource.identifier) for resource in assigned)
        taken = usage.taken() | usage.used | self._beside_given(cards)
        return frozenset(schedulable & set(addresses)) - taken

    def free(self) -> frozenset[PciAddress]:
        """Return the cards that a new instance could get, without a new inspection of the host."""
        usage = self._ledger.now
        used_devices = usage.taken() | usage.used | usage.counted() | self._beside_given()
        groups = self._groups.values()
        cards = {a for group in groups for a in group.gpus.keys() - self._unavailable_cards(group)}
        return frozenset(cards - used_devices)

    def _beside_given(self, devices: Collection[Device] = ()) -> frozenset[PciAddress]:
        """Return the cards that are joined with a card that an instance or a domain has.

        No other instance may get them, because it could reach that card's memory.

        :param devices: devices of instances that the ledger may not have yet
        """
        joined = self._joined_cards.joined()
        if not joined:
            return frozenset()
        usage = self._ledger.now
        every = usage.taken() | usage.used | usage.counted() | usage.started()
        cards = {device.function(item) for item in every.union(devices)} & joined.keys()
        return frozenset[PciAddress]().union(*(joined[card] - {card} for card in cards))

    def choose(
        self, provider_uuid: str, free: Collection[Device], count: int
    ) -> tuple[Device, ...]:
        return self._chosen(free, count)

    def _chosen(
        self, free: Collection[Device], count: int, beside: Beside[PciAddress] | None = None
    ) -> tuple[PciAddress, ...]:
        cards = device.cards(free)
        joined = self._sets.choose(cards, count, beside)
        return joined or choose.choose(cards, count, topology.places(self._at(cards)), beside)

    def distances(
        self, provider_uuid: str, devices: Collection[Device], claimant: Claimant
    ) -> Mapping[Device, int]:
        cells = claimant.affinity()
        gpus = self._at(device.cards(devices))
        return {gpu.address: cells.distance(gpu.numa_node) if cells else 0 for gpu in gpus}

    def improve(
        self,
        provider_uuid: str,
        own: Collection[Device],
        free: Collection[Device],
        claimant: Claimant,
    ) -> Collection[Device]:
        gpus = self._at(device.cards(free))
        if claimant.flavor.whole is None or len(gpus) < len(free):
            return own  # a card is gone, which the start reports
        arrangement = claimant.flavor.whole.arrangement
        beside = choose.beside(arrangement, gpus, claimant.neighbours, claimant.affinity())
        # A card that has gone since the claim has no place; the start is then refused for that.
        if beside is None or not beside.distance.keys() >= device.cards(own):
            return own
        chosen = self._chosen(free, len(own), beside)
        return chosen if beside.cost(chosen) < beside.cost(device.cards(own)) else own

    def _at(self, addresses: Collection[PciAddress]) -> list[GPU]:
        return [gpu for gpu in self.cards() if gpu.address in addresses]
