# SPDX-License-Identifier: Apache-2.0
"""The vGPUs of one compute host, MIG instances and virtual functions included.

They are made or prepared before their guest starts, and removed or cleaned after it ends.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent import futures

import futurist
from nova import objects
from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, GroupKey, PciAddress
from nova_gpu.core.unavailability import Reasons, Source
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot, VGPUKind, device_uuid
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.vgpu import preparation, slots
from nova_gpu.virt import libvirt_errors, threads
from nova_gpu.virt.delivery.delivery import Delivery, Grant
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.health import failed_starts
from nova_gpu.virt.inventory import vgpu_cards
from nova_gpu.virt.inventory.card_division import CardDivision
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.inventory.vgpu_inventory import VGPUInventory
from nova_gpu.virt.lifecycle import cleaning
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.usage.ledger import Ledger, State

LOG = logging.getLogger(__name__)

# Cleans a device that stays at its slot, by its way of delivery
Clean = Callable[[Delivery, Slot], None]
# The error text of a host without memory (ENOMEM), which is no failure of the function
_NO_MEMORY = os.strerror(errno.ENOMEM)
_REFUSED = "its driver refuses it a vGPU type"  # the cause of failures that are alike
# The longest time between two attempts: by default an hour
_MOST_PERIODS = 60


class VGPUs:
    """The vGPUs of one host: makes, cleans and removes them."""

    def __init__(
        self,
        discovery: Discovery,
        ledger: Ledger,
        proofs: Proofs,
        failed: failed_starts.FailedStarts,
    ) -> None:
        """Store the arguments, and read nova-gpu's records of made vGPUs."""
        self.proofs = proofs
        self._discovery = discovery
        self._roots = discovery.roots
        self._ledger = ledger
        self._made = MadeVGPUs(discovery.vgpus)
        self.cards = vgpu_cards.VGPUCards(
            self._roots, discovery.deliveries, self._made.recorded_types()
        )
        self.division = CardDivision(discovery, ledger)
        self.retries = Retries(self._card_of)
        self.vgpu_inventory = VGPUInventory(
            self.cards,
            self._made,
            ledger,
            discovery.deliveries.sets,
            discovery.joined_cards.unseparated_cards,
        )
        self._failed = failed
        # The instance of a vGPU that an earlier service made may be gone by now.
        ledger.was_used(self._made.instances())

    def __bool__(self) -> bool:
        """Return whether this host has vGPUs, or had some."""
        return bool(self.vgpu_inventory)

    def keys(self) -> list[GroupKey]:
        """Return the keys of the vGPU groups, and of the groups that the same cards form whole."""
        whole = (card.gpu.product for card in self.cards.look.cards.values())
        keys = [GroupKey.of_whole(product, self._discovery.delivery.mode) for product in whole]
        return [*self.cards.look.groups, *dict.fromkeys(keys)]

    def divided(self) -> list[DividedCard]:
        return [card.card for card in self.cards.look.cards.values()]

    def containers_cards(self) -> list[GPU]:
        return [card.gpu for card in self.shared_with_containers()]

    def shared_with_containers(self) -> list[SharedCard]:
        """Return the cards that containers share as MIG instances; none on KVM hosts."""
        if not self._discovery.delivery.shares_driver:
            return []
        return list(self.cards.look.cards.values())

    def by_guest(self) -> dict[str, frozenset[Slot]]:
        """Return the vGPUs of each guest by its uuid: those made for it, and those Nova counts."""
        vgpus, usage = self._made.by_instance(), self._ledger.now
        for uuid in usage.instances():
            counted = device.slots(usage.counted_for(uuid))
            if counted:
                vgpus[uuid] = vgpus.get(uuid, frozenset()) | counted
        return vgpus

    def way(self, slot: Slot) -> Delivery:
        return self._discovery.deliveries.part(self.cards.look.kind(slot))

    # Made and removed

    def make(self, instance_uuid: str, wanted: Collection[Slot], params: str | None = None) -> None:
        """Create the instance's vGPUs at the slots *wanted*.

        :param params: the parameters of NVIDIA's driver that each gets, ``None`` to leave them
        :raises DeviceUnavailable: if one of them cannot be made now, or takes no such parameters
        """
        for slot in sorted(wanted):
            other = self._made.instances().get(slot)
            if other not in (None, instance_uuid) and self.cards.look.is_made(slot, other):
                raise exception.DeviceUnavailable(
                    str(slot),
                    "the vGPU of an instance that is gone is still there",
                    "see in nova-compute's log why it was not removed",
                    other,
                )
            self._restore(slot)
            try:
                self._made.add(slot, instance_uuid, self.cards.names(slot))
                self.way(slot).prepare(slot, instance_uuid)
            except exception.DeviceUnavailable as error:
                is_others = any(text in str(error) for text in (_NO_MEMORY, slots.NOT_LISTED))
                is_its_own = len(wanted) == 1 and not is_others
                kind = self.cards.look.kind(slot)
                if is_its_own and kind.may_wedge:
                    self._failed.failed(kind, slot.parent, _REFUSED, error, is_its_own=True)
                    self._reserve_failed()
                raise
            except OSError as error:
                raise exception.DeviceUnavailable(
                    str(slot),
                    f"the record that it is made cannot be written: {error}",
                    f"make {self._discovery.vgpus} writable for nova-compute",
                ) from error
            finally:
                self.cards.read_again(slot)
            # A function may have those of its last guest.
            uuid = device_uuid(instance_uuid, slot)
            if params is not None and params != slots.params(slot, uuid, self._roots):
                nova_gpu.privsep.vgpu.set_params(str(slot), instance_uuid, params)

    def _restore(self, slot: Slot) -> None:
        """Make compute instances again that root in former guests of the slot's card has deleted.

        The driver chooses which GPU instance a vGPU is in, so all are looked at that have none, on
        a card whose compute instances nova-compute has made.

        :raises DeviceUnavailable: if one cannot be made
        """
        card = next((card for card in self.cards.look.cards.values() if card.has(slot)), None)
        if card is None or card.card.has_instances or not CONF.gpu.mig_profile:
            return
        address = card.gpu.address
        lacking = gpu_instances.without_compute(address, self._roots)
        if not lacking or preparation.of(card.gpu, CONF.gpu).mig_profile is None:
            return
        used = {parent.gpu_instance for parent in card.card.parents.values() if parent.made}
        if None not in used and (left := sorted(lacking.difference(used))):
            made = nova_gpu.privsep.vgpu.restore_compute_instances(str(address), left)
            LOG.info(
                "Made %d compute instances of GPU %s again that a guest deleted", made, address
            )

    @contextlib.contextmanager
    def start(
        self, instance: objects.Instance, grants: Collection[Grant], *, is_new: bool
    ) -> Iterator[None]:
        """Wrap the start of a guest with *grants*; note its failure against what is at fault.

        That is the device which the error names, else the host. Failures of guests with several
        parts of cards count only if the host is at fault, because the guest may just have too many.

        :param is_new: whether the guest gets the devices newly, so that a host that is closed after
            failures tries itself with this start
        """
        kinds = {self._kind(grant) for grant in grants}
        if is_new and any([self._failed.begins(kind) for kind in kinds]):
            self._reserve_failed()
        try:
            yield
        except Exception as error:  # a start ends with any error of Nova's
            self._blame(instance, grants, error)
            raise
        for kind in kinds:
            own = [grant for grant in grants if self._kind(grant) is kind]
            self._failed.started(kind, (_address(grant) for grant in own))
        if kinds:
            self._reserve_failed()

    def _blame(
        self, instance: objects.Instance, grants: Collection[Grant], error: Exception
    ) -> None:
        names = [(grant, libvirt_errors.names(instance.uuid, [grant])) for grant in grants]
        blame = libvirt_errors.blame(error, libvirt_errors.names(instance.uuid, grants))
        if blame is None:
            return
        named = (grant for grant, own in names if blame.name in own)
        grant = next(named, next(iter(grants)))
        if len(grants) > 1 and not isinstance(grant, GPU) and not blame.is_of_host:
            return
        # A mediated device is made for the guest: its card is at fault only if the cause says so.
        kind = self._kind(grant)
        is_made = kind is not None and kind.is_mediated and not blame.is_known
        is_of_start = blame.name is None or is_made
        self._failed.failed(
            kind,
            instance.uuid if is_of_start else _address(grant),
            blame.cause,
            error,
            is_its_own=blame.is_its_own and kind is not None and kind.may_wedge,
            project_id=None if blame.is_known else instance.project_id,
        )
        self._reserve_failed()

    def _kind(self, grant: Grant) -> VGPUKind | None:
        return None if isinstance(grant, GPU) else self.cards.look.kind(grant)

    def keep_failed(self) -> None:
        """Offer functions again that failed starts have withheld, once they were enabled anew.

        Call this in every period.
        """
        self._failed.look()
        self._reserve_failed()

    def _reserve_failed(self) -> None:
        by_kind: dict[VGPUKind, list[PciAddress]] = {}
        taken = {device.function(dev) for dev in self._ledger.now.devices(State.IN_USE)}
        for card in self.cards.look.cards.values():
            for function, parent in card.card.parents.items():
                is_free = function not in taken or parent.kind.is_mediated
                if is_free and all(reason.source is Source.STARTS for reason in card.reasons):
                    by_kind.setdefault(parent.kind, []).append(function)
        failing: dict[Device, Reasons] = {}
        for kind, functions in by_kind.items():
            failing.update(self._failed.failing(kind, functions).items())
        unavailable = unavailability.merge(self._failed.unavailable(), failing)
        self.cards.reserve_parts(Source.STARTS, unavailable)

    def make_again(self) -> None:
        """Make the vGPUs of this host's instances again, after a host boot has removed them.

        For a vGPU that exists and has no record, as one that stock Nova has made, write the record.
        Call this at service start, before new instances can get the room on the cards.
        """
        keys = {uuid: key for key, uuid in self.vgpu_inventory.provider_uuids.items()}
        owners, recorded = self._ledger.now.owners(keys) if keys else {}, self._made.instances()
        for slot in device.slots(owners):
            owner = owners[slot]
            is_made = self.cards.look.is_made(slot, owner.instance_uuid)
            if not is_made or recorded.get(slot) != owner.instance_uuid:
                try:
                    with boundary.crossed():
                        self.make(owner.instance_uuid, [slot])
                except boundary.Failure as error:
                    LOG.error(
                        "Failed to create vGPU %s again, will retry when its guest starts: %s",
                        slot,
                        error,
                    )

    def release(
        self,
        devices: Collection[Device],
        clean: Clean,
        instance_uuid: str | None = None,
    ) -> None:
        """Release those parts among *devices* that no guest has now, in parallel by card.

        A vGPU is removed, a MIG instance is cleaned. If that fails, the part is not offered, and
        :meth:`settle` retries it. At the end sets of cards that no guest needs are
        deactivated.

        :param clean: clean a part that is not removed; raise NotClean if that fails
        :param instance_uuid: the instance that had the parts, if known
        """
        those = self._to_release(devices)
        cards = {self._card_of(dev) for dev in those}

        def release_of(card: PciAddress) -> None:
            for dev in those:
                if self._card_of(dev) == card:
                    self._release(dev, clean, instance_uuid)

        threads.for_each(release_of, cards)
        if those:
            self._discovery.deliveries.sets.part()

    def settle(self, left: Collection[Device], clean: Clean) -> None:
        """Begin to release the parts among *left*; do not wait for it. Call this once in a period.

        :param left: the dirty devices, parts or whole cards, that no guest has
        """
        self._ledger.was_used(self._made.read_again())

        def release(dev: Device) -> bool:
            # Checked again: *left* may have been read long before.
            return dev not in self._ledger.now.left() or self._release(dev, clean)

        self.retries.begin(self._to_release(left), release)

    def _to_release(self, devices: Collection[Device]) -> list[Device]:
        """Return the parts among *devices*: slots, and functions that another program's domain had.

        Whole cards are left out.
        """
        functions = itertools.chain.from_iterable(card.parents for card in self.divided())
        ours = {dev for dev in functions if not self.proofs.covers(dev)} | device.slots(devices)
        return [dev for dev in devices if dev in ours]

    def _card_of(self, part: Device) -> PciAddress:
        """Return the address of the card of *part*, or of its function if the card is unknown."""
        parent = device.function(part)
        for card in self.divided():
            if parent in card.parents:
                return min(card.parents)
        return parent

    def _release(self, part: Device, clean: Clean, instance_uuid: str | None = None) -> bool:
        """Remove or clean *part*, unless a guest has it.

        Return ``False`` if that must be retried later; then the part is not offered.
        """
        try:
            with boundary.crossed(exception.DeviceUnavailable), self._ledger.clean(part):
                for slot in device.slots([part]):
                    owner_uuid = instance_uuid or self._made.instances().get(slot)
                    self._release_slot(slot, clean, owner_uuid)
                    self._prove(slot, owner_uuid)
                self.cards.read_again(part)
                self._ledger.cleaned(part)
        except exception.DeviceUnavailable:
            return True  # a guest has it, or its release is in progress
        except boundary.Failure as error:
            LOG.error(
                "Failed to remove or clean vGPU %s; it is not offered until a retry succeeds: %s",
                part,
                error,
            )
            return False
        LOG.info("Released vGPU %s", part)
        return True

    def _release_slot(self, slot: Slot, clean: Clean, instance_uuid: str | None) -> None:
        way = self.way(slot)
        if not self._is_another(slot):
            way.release(slot, instance_uuid, functools.partial(clean, way))
        if instance_uuid is not None:
            self._made.remove(slot, instance_uuid)

    def _prove(self, slot: Slot, instance_uuid: str | None) -> None:
        """Write the proof that the MIG instance at *slot* is clean; other parts need none."""
        for card in self.shared_with_containers():
            if card.has(slot) and not card.lacks(slot):
                self.proofs.prove(slot, card.gpu, cleaning.words(was_reset=False), instance_uuid)

    def _is_another(self, slot: Slot) -> bool:
        """Return whether another MIG instance exists now with the number of *slot*.

        The operator has divided the card again. The new MIG instance may have a guest of its own,
        so it must not be cleaned.
        """
        cards = [card for card in self.cards.look.cards.values() if card.has(slot)]
        lacking = any(card.lacks(slot) for card in cards)
        is_another = lacking and self.way(slot).is_there(slot, "", None)
        if is_another:
            LOG.error(
                "Cannot clean vGPU %s: its card was divided again while an instance had it, and "
                "its number now belongs to another MIG instance. Divide a card only while no "
                "instance has a part of it.",
                slot,
            )
        return is_another


def _address(grant: Grant) -> PciAddress:
    return grant.address if isinstance(grant, GPU) else grant.parent


class Retries:
    """Releases of devices in background threads, in parallel by card, with retries.

    In the foreground a hanging command or driver would delay the period, and with it the start of
    the service.

    :param card_of: return the address of a device's card
    """

    def __init__(self, card_of: Callable[[Device], PciAddress]) -> None:
        self._card_of = card_of
        self._begun: dict[PciAddress, futurist.Future[None]] = {}
        self._period = 0
        self._lock = threading.Lock()
        # By device: how often its release failed, and the period of the next attempt.
        self._failed: dict[Device, tuple[int, int]] = {}

    def begin(self, left: Iterable[Device], release: Callable[[Device], bool]) -> None:
        """Begin to release those of *left* that are due; do not wait for it.

        A device whose release failed is due again after 1, 2, 4, ... periods, at most 60. Call this
        once in a period, because it counts periods.

        :param left: all devices to release; others are no longer retried
        :param release: release a device; return ``False`` if it must be retried; raise nothing
        """
        self._period += 1
        devices = sorted(left, key=str)
        with self._lock:
            known = {item: self._failed[item] for item in devices if item in self._failed}
            self._failed = known
        self._begun = {card: item for card, item in self._begun.items() if not item.done()}
        due = collections.defaultdict(list)
        for part in devices:
            if known.get(part, (0, 0))[1] <= self._period:
                due[self._card_of(part)].append(part)
        for card in due.keys() - self._begun.keys():
            begun = threads.begin(lambda those: self._release(those, release), due[card])
            self._begun[card] = begun

    def wait(self, until: float | None = None) -> bool:
        """Wait until all releases have ended, or until ``time.monotonic()`` reaches *until*.

        Return whether the last :meth:`begin` began any release, or found one in progress.
        """
        begun = list(self._begun.values())
        for thread in begun:
            with contextlib.suppress(futures.TimeoutError):
                thread.result(None if until is None else max(0.0, until - time.monotonic()))
        return bool(begun)

    def _release(self, devices: Collection[Device], release: Callable[[Device], bool]) -> None:
        for part in devices:
            is_over = release(part)
            with self._lock:
                times, _ = self._failed.pop(part, (0, 0))
                if not is_over:
                    after = min(2**times, _MOST_PERIODS)
                    self._failed[part] = (times + 1, self._period + after)
