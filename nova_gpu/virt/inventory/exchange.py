# SPDX-License-Identifier: Apache-2.0
"""The choice of which of its host's GPUs an instance gets: the last one, before its start.

A claim of Nova counts the GPUs and draws some (:mod:`nova_gpu.virt.inventory.pool`). It passes
neither the instance, nor its NUMA cells, nor the network functions and disks that it has by Nova's
own PCI passthrough. Before its guest starts all of these are known, and the GPUs that the claim has
drawn are exchanged for free ones of the same groups that suit the instance better. An instance that
had its GPUs before keeps them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.virt import hardware
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.topology import affinity
from nova_gpu.virt.inventory import numa_cells
from nova_gpu.virt.inventory.assignment import AnyInventory, InstanceDevices
from nova_gpu.virt.inventory.base_inventory import Holding
from nova_gpu.virt.inventory.neighbours import Neighbours
from nova_gpu.virt.inventory.pool import Claimant, DeviceSet, Pool
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.usage import records

LOG = logging.getLogger(__name__)

# Sets of nodes that cells could move to; Nova's lock is held while they are compared.
_MOST_PLACES = 1000

# The devices that an instance has on this host, by inventory
Holdings: TypeAlias = Mapping[AnyInventory, Collection[Holding[Any, Any]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Draw:
    """The devices that an instance has drawn from one pool, with the tracker's set of these.

    One without GPUs has drawn none, from any.
    """

    own: Collection[objects.Resource]
    pool: Pool
    assigned: set[objects.Resource]


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange of GPUs of instances that have not started."""

    assigned: InstanceDevices
    tracker: Tracker
    neighbours: Neighbours
    compute_host: str = dataclasses.field(default_factory=lambda: str(CONF.host))
    # Builds whose guest cannot start with the GPUs that they have, and may not have begun to
    _waiting: dict[str, tuple[objects.Instance, Claimant]] = dataclasses.field(default_factory=dict)

    def make(self, instance: objects.Instance, *, moves_cells: bool, waits: bool = False) -> None:
        """Exchange the instance's GPUs for free ones that suit it better, if there are any.

        Else swap them with those of a build that waits for that, if both may have them then.

        :param moves_cells: whether its cells may move to the GPUs: its domain is defined anew
        :param waits: whether others may swap GPUs with it, until the next call
        :raises InvalidExtraSpec: if its flavor cannot be parsed
        :raises nova.exception.InstanceNotFound: if it is deleted meanwhile
        """
        if not (instance.resources or CONF.gpu.move_cells_without_gpus):
            return
        claimant = self.claimant(instance)
        if claimant.cells or claimant.neighbours:
            self.tracker.change(
                lambda tracker: self._make(tracker, instance, claimant, moves_cells, waits)
            )

    def _make(
        self,
        tracker: Any,
        instance: objects.Instance,
        claimant: Claimant,
        moves_cells: bool,
        waits: bool,
    ) -> None:
        self._waiting.pop(instance.uuid, None)
        if tracker.provider_tree is None:
            return  # before the first period it is unknown which devices are free
        draws = list(_draws(tracker, instance))
        if moves_cells and claimant.cells and draws:
            claimant = self._move_cells(tracker, instance, claimant, draws)
        for draw in draws:
            if draw.own:
                own = self._exchange(instance, claimant, draw)
                if draw.pool.permits(own, claimant):
                    continue
                is_swapped = self._swap(tracker, instance, claimant, own, draw.pool)
                if waits and not is_swapped:
                    self._waiting[instance.uuid] = instance, claimant

    def _exchange(
        self, instance: objects.Instance, claimant: Claimant, draw: Draw
    ) -> Collection[objects.Resource]:
        """Exchange what the instance has drawn from one pool, in all records.

        Return what it has then.
        """
        exchanged = draw.pool.improve(draw.own, claimant)
        if not exchanged:
            return draw.own
        draw.assigned.update(exchanged.values())
        try:
            self._save(instance, functools.partial(_replace, exchanged=exchanged))
        except BaseException:
            draw.assigned.difference_update(exchanged.values())
            draw.pool.take_back(exchanged)
            raise
        draw.assigned.difference_update(exchanged)
        for old, new in exchanged.items():
            LOG.info("Exchanged GPU %s for %s", old.identifier, new.identifier, instance=instance)
        return [exchanged.get(item, item) for item in draw.own]

    def _swap(
        self,
        tracker: Any,
        instance: objects.Instance,
        claimant: Claimant,
        own: Collection[objects.Resource],
        pool: Pool,
    ) -> bool:
        """Swap what the instance has of one pool with a build that waits, if both may start then.

        Return whether there is such a build.
        """
        kind = {(item.provider_uuid, item.resource_class) for item in own}
        for other, theirs in list(self._waiting.values()):
            is_claimed = other.uuid in tracker.tracked_instances
            # Where its build has failed, it may have come back since, by a move, with other GPUs.
            if not is_claimed or other.host != self.compute_host:
                del self._waiting[other.uuid]
                continue
            has = [r for r in other.resources or () if (r.provider_uuid, r.resource_class) in kind]
            if not (swap := pool.swap(own, claimant, has, theirs)):
                continue
            back = {new: old for old, new in swap.items()}
            try:
                self._save(other, functools.partial(_replace, exchanged=back))
            except nova_exception.InstanceNotFound:
                continue  # deleted meanwhile
            try:
                self._save(instance, functools.partial(_replace, exchanged=swap))
            except BaseException:
                self._save(other, functools.partial(_replace, exchanged=swap))
                raise
            del self._waiting[other.uuid]
            words = ", ".join(f"{old.identifier} for {new.identifier}" for old, new in swap.items())
            LOG.info("Swapped GPUs with instance %s: %s", other.uuid, words, instance=instance)
            return True
        return False

    def _move_cells(
        self,
        tracker: Any,
        instance: objects.Instance,
        claimant: Claimant,
        draws: Collection[Draw],
    ) -> Claimant:
        """Move the instance's cells to nodes that are nearer to GPUs which it can have.

        Do nothing if there are none, or the cells do not fit there. Among equally near nodes those
        with the fewest free GPUs are taken, and if it has no GPUs, among all. Return *claimant*
        with its cells.
        """
        node = tracker.compute_nodes[self.assigned.nodename()]
        topology = numa_cells.host(node)
        if topology is None:
            return claimant

        def cost(nodes: Iterable[int]) -> tuple[list[int], int]:
            there = dataclasses.replace(claimant, cells=frozenset(nodes))
            near = [(draw.pool.distances(draw.own, there), len(draw.own)) for draw in draws]
            nearest = itertools.chain(*(distances[:count] for distances, count in near))
            free = sum(distances.count(affinity.IN_CELL) for distances, _ in near)
            return sorted(nearest, reverse=True), free

        distances, free = now = cost(claimant.cells)
        has_reason = any(distances) if distances else free
        if not has_reason or numa_cells.are_tied(topology, instance):
            return claimant

        def is_nearer(price: tuple[list[int], int]) -> bool:
            return price[0] < distances if distances else price < now

        without = hardware.numa_usage_from_instance_numa(
            topology, instance.numa_topology, free=True
        )
        # Nova tries all orders of cells, which takes long on nodes that take none.
        able = numa_cells.able(node, without, instance)
        richest = sorted(able, key=lambda node: (cost((node,)), node))
        places = itertools.combinations(richest, len(claimant.cells))
        tried = itertools.islice(places, _MOST_PLACES)
        nearer = sorted((price, nodes) for nodes in tried if is_nearer(price := cost(nodes)))
        for _, nodes in nearer:
            if (cells := numa_cells.fit(node, without, instance, nodes)) is not None:
                self._save(instance, functools.partial(_put, cells=cells))
                usage = hardware.numa_usage_from_instance_numa(without, cells)
                node.numa_topology = usage._to_json()
                tracker._update(nova_context.get_admin_context(), node)
                LOG.info(
                    "Moved cells from NUMA nodes %s to %s, by the GPUs that are free",
                    sorted(claimant.cells),
                    list(nodes),
                    instance=instance,
                )
                return dataclasses.replace(claimant, cells=frozenset(nodes))
        return claimant

    def _save(self, instance: objects.Instance, change: Callable[[Any, str], None]) -> None:
        """Change what an instance that Nova is about to start has claimed here, and save that.

        A copy of the instance is saved, because Nova may have changed *instance* only for the time
        in which it calls the driver (``Instance.mutated_migration_context``). The copy lacks a
        claim that Nova has not saved yet, as in an unshelve; then Nova saves *instance* later.

        :param change: change the object with the claim, whose fields have a prefix
        """
        stored = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(),
            instance.uuid,
            expected_attrs=["resources", "numa_topology", "migration_context"],
        )
        # An instance that is evacuated has claimed by its migration context alone.
        for claim in _claims(stored)[0 if stored.host == self.compute_host else 1 :]:
            change(*claim)
        stored.save()
        for claim in _claims(instance):
            change(*claim)

    def remote(self, instance: objects.Instance, held: Holdings) -> str | None:
        """Return why the GPUs in *held* are too far from the instance's cells, else ``None``."""
        claimant = self.claimant(instance)
        reasons = (supply.remote(own, claimant) for supply, own in held.items() if own)
        return next(filter(None, reasons), None)

    def claimant(self, instance: objects.Instance) -> Claimant:
        request, topology = records.request_of(instance), instance.numa_topology
        whole = request.whole
        is_near = whole is not None and whole.arrangement.near is not Near.ANY
        near = self.neighbours.had_by(instance) if is_near else ()
        if topology is None:
            return Claimant(request, near)
        cells = frozenset(cell.id for cell in topology.cells)
        policy = hardware.get_pci_numa_policy_constraint(instance.flavor, instance.image_meta)
        host = numa_cells.host(self.tracker.node(self.assigned.nodename()))
        sockets = {cell.id: cell.socket for cell in host.cells} if host else {}
        return Claimant(request, near, cells, policy, sockets)


def _draws(tracker: Any, instance: objects.Instance) -> Iterator[Draw]:
    """Yield what the instance has drawn from each of this host's pools, or all pools if nothing."""
    own: dict[tuple[str, str], list[objects.Resource]] = {}
    for item in instance.resources or ():
        own.setdefault((item.provider_uuid, item.resource_class), []).append(item)
    tree = tracker.provider_tree
    for uuid in tree.get_provider_uuids():
        for resource_class, devices in (tree.data(uuid).resources or {}).items():
            items = own.get((uuid, resource_class), ())
            if isinstance(devices, DeviceSet) and (items or not own):
                assigned = tracker.assigned_resources[uuid][resource_class]
                yield Draw(items, devices - assigned, assigned)


def _claims(instance: objects.Instance) -> list[tuple[Any, str]]:
    """Return the objects with what an instance has claimed here, and the prefix of their fields."""
    move = instance.migration_context if "migration_context" in instance else None
    return [(instance, ""), *([(move, "new_")] if move else ())]


def _replace(
    claim: Any, prefix: str, exchanged: Mapping[objects.Resource, objects.Resource]
) -> None:
    before = getattr(claim, f"{prefix}resources") or ()
    if any(item in exchanged for item in before):
        after = [exchanged.get(item, item) for item in before]
        setattr(claim, f"{prefix}resources", objects.ResourceList(objects=after))


def _put(claim: Any, prefix: str, cells: objects.InstanceNUMATopology) -> None:
    setattr(claim, f"{prefix}numa_topology", cells)
