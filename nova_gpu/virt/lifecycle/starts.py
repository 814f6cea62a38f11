# SPDX-License-Identifier: Apache-2.0
"""Check, reserve and prepare an instance's GPUs before libvirt starts its guest."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.virt import configdrive
from nova.virt.libvirt import config as vconfig
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception, flavor_mismatch
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.guest import devices as guest_devices
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.model import GPU
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.virt import counters, libvirt_errors
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.delivery.delivery import Delivery, Grant
from nova_gpu.virt.delivery.ways import Ways
from nova_gpu.virt.inventory import stranding
from nova_gpu.virt.inventory.assignment import Assigned, Supply
from nova_gpu.virt.inventory.published import Holding
from nova_gpu.virt.lifecycle import refusals
from nova_gpu.virt.lifecycle.lost_reasons import LostReasons
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.lifecycle.stops import Stops
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage import records
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader

LOG = logging.getLogger(__name__)

Held = Mapping[Supply, Collection[Holding[Any, Any]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Starts:
    """The starts of guests on one host.

    :param hypervisor_type: what the host reports to Nova: ``LXC`` or ``QEMU``
    :param free: how many GPUs an instance could be given now, whole or a part of
    :param left: how many vCPUs, and MiB of memory, no instance has
    :param neighbours: what an instance has of Nova's own passthrough
    :param lost_reasons: notes why new guests do not start
    """

    assigned: Assigned
    ways: Ways
    vgpus: VGPUs
    proofs: Proofs
    ledger: Ledger
    usage_reader: UsageReader
    reporter: Reporter
    stops: Stops
    refusals: refusals.Refusals
    hypervisor_type: Callable[[], str]
    free: Callable[[], int]
    left: Callable[[], tuple[float, float]]
    neighbours: Callable[[objects.Instance], tuple[Neighbour, ...]]
    lost_reasons: LostReasons

    def prepare(self, instance: objects.Instance) -> None:
        """Begin to make the cards ready while Nova prepares a new guest's network and volumes.

        To have a card from the host's driver may take seconds. What fails here is said at the
        start.
        """
        if self.ways.whole.shares_driver or not self.assigned:
            return  # then there is nothing to be had from it
        with contextlib.suppress(Exception):
            held = self.assigned.held_of(self.assigned.whole, instance.resources)
            flavor_request = records.request_of(instance)
            cards = _cards([holding.grant for holding in held])
            # Nothing is taken from the host for a guest that cannot have it.
            self.ways.whole.refuse(instance, flavor_request, cards)
            for card in cards:
                self.ways.custody.begin(card, instance.uuid)

    @contextlib.contextmanager
    def starting(
        self,
        instance: objects.Instance,
        *,
        spawning: bool = False,
        arriving: bool = False,
        running: bool = True,
        end: Callable[[], None] | None = None,
    ) -> Iterator[bool]:
        """Wrap every start of a guest.

        Look at what the instance holds, compare it with its flavor and hold the GPUs until libvirt
        knows the guest. One that gave its GPUs back when it was stopped gets some first, and
        whether it did is yielded.

        :param arriving: the instance was moved here, or resized
        :param running: whether its guest runs then, and is not only defined
        :param end: ends its guest, where Nova is about to do that: then it also gives up what a
            failed move has left it, and gets GPUs for the flavor that it has
        :raises nova.exception.ComputeResourcesUnavailable: where another host could do better
        :raises nova.exception.BuildAbortException: while *spawning*, where no other host could
        :raises nova.exception.InstanceUnacceptable: the same, later in an instance's life
        """
        with contextlib.ExitStack() as stack:
            if spawning:
                stack.enter_context(self.lost_reasons.noting(instance.uuid))
            with _in_novas_words(instance, spawning):
                flavor, again = records.request_of(instance), False
                if end and self.assigned:
                    self.stops.give_up(instance, end)
                if running:
                    again = stack.enter_context(self.stops.starting(instance, flavor))
                elif self.stops.is_released(instance, flavor):
                    flavor = request.of({})  # it gets its GPUs when it is started
                held = self._held(instance)
                devices, grants = _devices(held), _given(held)
                # First, because the pool has them back as soon as a hold ends or is refused.
                before = stack.enter_context(self.holding(instance.uuid, devices))
                self._compare(
                    *(instance, flavor, held), spawning=spawning, arriving=arriving, again=again
                )
                if spawning and not devices:
                    stranding.refuse(instance, flavor, self.free, self.left)
                for delivery, own in self._deliveries(grants):
                    if own:
                        delivery.refuse(instance, flavor, own)
                    for card in _cards(own):
                        delivery.prepare(card, instance.uuid)
                    self.ways.sets.join(_devices_of(own), instance.uuid)
                # From now on a guest may have used them.
                self.proofs.revoke(devices)
                self.ledger.was_used(devices)
                self.vgpus.make(instance.uuid, devices)
            if spawning or arriving or again:
                # What is rebuilt in its place is spawned with what it has.
                self._report(instance, held, before)
            if devices:
                words = ", ".join(str(holding.device) for own in held.values() for holding in own)
                LOG.info("Starting with GPUs %s", words, instance=instance)
            with (
                _in_novas_words(instance, spawning),
                libvirt_errors.translated(instance.uuid, grants),
                self.vgpus.start(devices),
            ):
                yield again

    @contextlib.contextmanager
    def start_or_stay(self, instance: objects.Instance, **kwargs: Any) -> Iterator[bool | None]:
        """Wrap a start that Nova ends in ERROR where it fails.

        Yield what :meth:`starting` yields, and None where an instance that gave its
        GPUs back gets none: then the start does nothing, and fails later.
        """
        with contextlib.ExitStack() as stack:
            started: bool | None = None
            try:
                started = stack.enter_context(self.starting(instance, **kwargs))
            except nova_exception.NovaException as error:
                stays = instance.task_state in (
                    task_states.RESCUING,
                    task_states.REBOOT_STARTED_HARD,
                )
                if not stays or not self.is_released(instance):
                    raise
                self.refusals.refuse_start(instance, error)
            yield started

    @contextlib.contextmanager
    def rescuing(
        self, instance: objects.Instance, define_again: Callable[[], None]
    ) -> Iterator[bool]:
        """Wrap a rescue; yield whether it goes on. Where not, it does nothing, and fails later.

        :param define_again: called where the instance was given GPUs, as what unrescue starts is
            the domain as it is now
        """
        if self.refusals.is_rescue_refused(instance):
            yield False
            return
        with self.start_or_stay(instance) as again:
            if again:
                define_again()
            yield again is not None

    def is_released(self, instance: objects.Instance) -> bool:
        """Return whether the instance gave its GPUs back and has none since."""
        return self.stops.is_released(instance, records.request_of(instance))

    def rebuild(self, instance: objects.Instance) -> None:
        """Give GPUs to a rebuilt instance that released its own, when Nova shuts it off.

        Its disk still exists then.

        :raises nova.exception.InstanceFaultRollback: the instance goes on as it was
        """
        if instance.task_state != task_states.REBUILDING:
            return
        flavor_request = records.request_of(instance)
        if self.stops.is_released(instance, flavor_request):
            try:
                with _in_novas_words(instance, spawning=False):
                    self.stops.take_again(instance, flavor_request)
            except nova_exception.NovaException as error:
                raise nova_exception.InstanceFaultRollback(error) from error

    @contextlib.contextmanager
    def holding(
        self, instance_uuid: str, devices: frozenset[Device]
    ) -> Iterator[frozenset[Device]]:
        """Hold *devices* while a guest is started with them, and what else it has of ours.

        Gives what the guest had before, or has as long as it is rebuilt.

        While Nova reboots a guest it has no domain: a card that it has by an alias would seem free.

        :raises DeviceUnavailable: when another start or domain has one of them
        :raises DomainsUnreadable: if that is unknown
        """
        devices_kept = self.ledger.now.kept_by(instance_uuid)
        if not devices | devices_kept:
            yield devices_kept
            return
        with self.ledger.hold(
            instance_uuid, devices, self.usage_reader.look_at_domains, devices_kept
        ):
            try:
                yield devices_kept
            finally:
                self.ways.custody.started(instance_uuid)

    def is_reboot_hard(self, instance: objects.Instance) -> bool:
        """Return whether a soft reboot of the instance is a hard one.

        It starts the domain as it is, which may lead to another card by now; a hard reboot writes
        the domain anew.
        """
        if not self.ways.whole.needs_hard_reboot:
            return False
        supplies, resources = self.assigned.supplies, instance.resources or ()
        has_any = any(supply.counts(resource) for resource in resources for supply in supplies)
        return has_any or bool(self.ledger.now.kept_by(instance.uuid))

    def add_gpus(
        self, instance: objects.Instance, guest: vconfig.LibvirtConfigGuest
    ) -> vconfig.LibvirtConfigGuest:
        """Return the guest's configuration with the GPUs that the instance holds.

        :raises nova.exception.ComputeResourcesUnavailable: where one of them cannot be given now
        """
        if not self.assigned:
            return guest
        with _in_novas_words(instance, spawning=False):
            flavor_request, held = records.request_of(instance), self._held(instance)
            self._refuse_unheld(instance, _devices(held))
            elements: list[GuestDevice] = []
            for delivery, own in self._deliveries(_given(held)):
                elements += delivery.render(instance, flavor_request, guest, own)
            if any(held.values()):
                parts = [holding.group.facts for holding in held[self.assigned.parts]]
                _tell(instance, elements, parts)
        return guest_config.with_cliques(guest)

    def _held(self, instance: objects.Instance) -> Held:
        """Return what the instance has of this host.

        Where that has no GPUs the database is not asked.
        """
        return self.assigned.held(instance.resources if self.assigned else ())

    def _deliveries(self, grants: Collection[Grant]) -> Iterator[tuple[Delivery, list[Grant]]]:
        return self.ways.deliveries(grants, self.vgpus.cards.look.kind)

    def _refuse_unheld(self, instance: objects.Instance, devices: Set[Device]) -> None:
        """Refuse devices of a start that nothing holds: a way of Nova's that is not overridden.

        :raises DeviceUnavailable: where no other check has seen that they are free
        """
        for device in sorted(devices - self.ledger.now.held_for(instance.uuid), key=str):
            raise exception.DeviceUnavailable(
                str(device),
                "Nova starts the guest in a way that this nova-gpu does not know, and has not "
                "checked that no other guest has it",
                "install the nova-gpu that goes with this Nova (nova-gpu-status upgrade check)",
            )

    def _compare(
        self,
        instance: objects.Instance,
        flavor_request: FlavorRequest,
        held: Held,
        *,
        spawning: bool,
        arriving: bool,
        again: bool,
    ) -> None:
        """Compare what the instance holds with its flavor.

        :raises RequestMismatch: where the flavor asks for others than the instance holds
        :raises BetterElsewhere: while *spawning*, where it insists on a topology that these do not
            have, or on neighbours
        :raises NoneFree: the same of one that gets GPUs *again*
        """
        if not any(held.values()) and not (
            flavor_request.asks_for_gpus or flavor_request.vgpu_words
        ):
            return
        hypervisor_type, is_new = self.hypervisor_type(), spawning or arriving or again
        for supply, own in held.items():
            if reason := supply.mismatch(flavor_request, own, hypervisor_type, is_new=is_new):
                raise exception.RequestMismatch(
                    reason,
                    "is GPUFilter in [filter_scheduler]enabled_filters of nova-scheduler, and was "
                    f"its flavor changed to one with {supply.noun} by a resize?",
                )
            if is_new and (
                reason := supply.apart(flavor_request, own, hypervisor_type)
                or self._not_beside(instance, flavor_request, own)
            ):
                if spawning:
                    raise exception.BetterElsewhere(
                        None, reason, "another host may have them together"
                    )
                if again:
                    raise exception.NoneFree(reason, "start it when others are free")
                # Nobody would schedule it a second time: an error would cost the instance.
                LOG.warning("The instance continues nevertheless: %s", reason, instance=instance)

    def _not_beside(
        self,
        instance: objects.Instance,
        flavor_request: FlavorRequest,
        own: Collection[Holding[Any, Any]],
    ) -> str | None:
        """Return the reason of :func:`nova_gpu.core.flavor_mismatch.not_beside`."""
        if not (flavor_request.whole and flavor_request.whole.arrangement.insists_on_near):
            return None
        cards = _cards([holding.grant for holding in own])
        return flavor_mismatch.not_beside(
            flavor_request.whole.arrangement, cards, self.neighbours(instance)
        )

    def _report(self, instance: objects.Instance, held: Held, before: Collection[Device]) -> None:
        """Send notifications of what the instance has now and did not have *before*."""
        new = (holding for own in held.values() for holding in own if holding.device not in before)
        self.reporter.claimed(instance, {holding.device: holding.group.product for holding in new})


def _devices(held: Held) -> frozenset[Device]:
    return frozenset(holding.device for own in held.values() for holding in own)


def _given(held: Held) -> list[Grant]:
    """Return what the ways of delivery are told, whole cards first."""
    return [holding.grant for own in held.values() for holding in own]


def _devices_of(grants: Collection[Grant]) -> list[Device]:
    return [grant.address if isinstance(grant, GPU) else grant for grant in grants]


def _cards(grants: Collection[Grant]) -> list[GPU]:
    return [grant for grant in grants if isinstance(grant, GPU)]


def _tell(
    instance: objects.Instance, cards: Sequence[GuestDevice], parts: Iterable[VGPUType]
) -> None:
    """Save with the instance the description of its *cards*, and of its parts by their types.

    Nova writes that when the guest has started, and before where a config drive is made then: what
    is on it is asked of a service that reads what was saved.
    """
    guest_list = [
        *cards,
        *itertools.starmap(guest_devices.of_part, enumerate(parts, start=len(cards))),
    ]
    metadata, text = instance.system_metadata, guest_devices.to_metadata(guest_list)
    if text == {key: metadata[key] for key in guest_devices.keys_of(metadata)}:
        return
    for key in guest_devices.keys_of(metadata):
        del metadata[key]
    metadata.update(text)
    if "DynamicJSON" in CONF.api.vendordata_providers and configdrive.required_by(instance):
        instance.save()


@contextlib.contextmanager
def _in_novas_words(instance: objects.Instance, spawning: bool) -> Iterator[None]:
    """Translate this package's errors to Nova's, which the instance's user reads, in one place."""
    try:
        yield
    except exception.GPUError as error:
        if isinstance(error, exception.GuestError):
            error.host = CONF.host
        counters.failed(error)
        # With what the instance's user is not told. Of a reboot that failed while the guest runs
        # Nova's own log does not say why.
        LOG.warning("Refused to start the guest: %s", error, instance=instance)
        raise refusals.expected(_in_novas_word(error, instance, spawning)) from error


def _in_novas_word(
    error: exception.GPUError, instance: objects.Instance, spawning: bool
) -> nova_exception.NovaException:
    """Return what the instance's user reads."""
    reason = str(error)
    if isinstance(error, exception.GuestError):
        reason = error.user_text
    if isinstance(error, exception.GuestCannotStart):
        return nova_exception.ComputeResourcesUnavailable(reason=reason)
    if spawning:
        return nova_exception.BuildAbortException(instance_uuid=instance.uuid, reason=reason)
    return nova_exception.InstanceUnacceptable(instance_id=instance.uuid, reason=reason)
