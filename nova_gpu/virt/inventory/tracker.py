# SPDX-License-Identifier: Apache-2.0
"""Changes of an instance's devices outside Nova's claims, in the records of its resource tracker.

They are needed when an instance releases its GPUs at a stop and gets others at its next start, and
when it gets other GPUs than its claim has drawn (:mod:`nova_gpu.virt.inventory.exchange`). A change
affects the tracker's record of assigned resources, and ``instance.resources``, from which the
tracker rebuilds that record in every period. Both are changed under the tracker's lock, as in
Nova's own claims. Nova has no interface for it: doc/source/contributor/upstream.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova import utils as nova_utils
from nova.compute import resource_tracker

from nova_gpu.core import exception, names
from nova_gpu.virt.inventory.placement_client import Amounts

_locked = nova_utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)


class _SavedWhenFreed(dict[str, Any]):
    """Nova's records of functions that go once they are free, by address, each saved as free first.

    Nova writes only that they are gone (``PciDevTracker._free_device``), so that such a record goes
    on to name the instance that had the function. Nova reads it when it looks for the functions of
    that instance (``Instance.obj_load_attr``): no start of it succeeds then, or it starts with a
    function that is another's on its next host.
    """

    def pop(self, address: str, default: Any = None) -> Any:
        record = super().pop(address, default)
        if record is not None:
            record.save()
        return record


class Tracker:
    """Access to the records of Nova's resource tracker.

    :param find: return Nova's tracker, which does not exist yet when the driver is created
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        # How many builds this driver has refused that Nova counts as failed, or is about to
        self._refused = 0

    @property
    def pci(self) -> Any:
        """Nova's tracker for its own PCI passthrough; ``None`` before the first period."""
        return self._find().pci_tracker

    def save_freed(self) -> None:
        """Let Nova save as free what instances had and ``[pci]device_spec`` no longer names.

        Call this in each period, as Nova's tracker is made in the first one. Before 31.2, Nova
        removes such a function in a later period, when its record is saved.
        """
        records = getattr(self.pci, "to_be_removed_when_freed", None)
        if records is not None and not isinstance(records, _SavedWhenFreed):
            self.pci.to_be_removed_when_freed = _SavedWhenFreed(records)

    def refused_build(self) -> None:
        """Note that this driver refuses a build, which is no failure of its host."""
        self._refused += 1

    def forgive_builds(self, nodename: str) -> None:
        """Take the refused builds out of those that Nova counts as failed.

        Call this in a period, in which Nova reports the number to the scheduler: its
        ``BuildFailureWeigher`` would send all further instances to other hosts.
        """
        refused, self._refused = self._refused, 0
        stats = self._find().stats.get(nodename) if refused else None
        if stats:
            stats["failed_builds"] = max(stats.get("failed_builds", 0) - refused, 0)

    def renew_report(self, nodename: str, text: str | None) -> None:
        """Replace this host's report for the scheduler, which the period has made, by *text*.

        Call this in ``update_provider_tree``: Nova calls that in each claim, under the lock of its
        records, and saves the node after it. So the scheduler need not wait for a period.
        """
        tracker = self._find()
        stats = tracker.stats.get(nodename)
        if text and stats and stats.get(names.STATS, text) != text:
            stats[names.STATS] = text
            tracker.compute_nodes[nodename].stats = stats

    def node(self, nodename: str) -> objects.ComputeNode:
        return self._find().compute_nodes[nodename]

    def change(self, make: Callable[[Any], None]) -> None:
        """Call *make* with Nova's tracker, under the lock under which it claims."""
        _locked(make)(self._find())

    def release(self, instance: objects.Instance, own: Collection[objects.Resource]) -> None:
        """Remove the resources *own* from the saved record of *instance* and from the tracker's."""

        def release() -> None:
            _save(
                instance, [resource for resource in instance.resources or () if resource not in own]
            )
            assigned = self._find().assigned_resources
            for resource in own:
                if resource.provider_uuid in assigned:  # else the device is on another host
                    assigned[resource.provider_uuid][resource.resource_class].discard(resource)

        _locked(release)()

    def hand_out(self, instance: objects.Instance, amounts: Amounts) -> None:
        """Claim devices for *instance* in addition to those it has, and save them in its record.

        :param amounts: the number of devices of each resource class, by provider UUID
        :raises NoneFree: if fewer devices are free, or nova-compute has not had its first period
        """

        def hand_out() -> None:
            tracker = self._find()
            wanted = {uuid: {"resources": dict(item)} for uuid, item in amounts.items()}
            try:
                if tracker.provider_tree is None:
                    raise nova_exception.ComputeResourcesUnavailable(
                        reason="nova-compute has only just started"
                    )
                new = tracker._claim_resources(wanted)
            except nova_exception.ComputeResourcesUnavailable as error:
                raise exception.NoneFree(
                    "its host has not as many GPUs free as Placement counts there",
                    "try again in a minute",
                    str(error),
                ) from error
            claimed = list(new or ())
            try:
                _save(instance, [*(instance.resources or ()), *claimed])
            except BaseException:
                tracker._release_assigned_resources(claimed)
                raise

        _locked(hand_out)()


def _save(instance: objects.Instance, resources: Collection[objects.Resource]) -> None:
    before = instance.resources
    instance.resources = objects.ResourceList(objects=list(resources))
    try:
        instance.save()
    except BaseException:
        instance.resources = before
        raise
