# SPDX-License-Identifier: Apache-2.0
"""Checks, reservation and preparation of an instance's GPUs before libvirt starts its guest."""

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
from nova_gpu.virt.lifecycle import quota, refusals
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

    :param ways: the deliveries of the host
    :param hypervisor_type: return the type that the host reports to Nova, ``LXC`` or ``QEMU``
    :param free: return how many cards are free, or have room for a vGPU
    :param left: return the number of free vCPUs and the MiB of free memory
    :param neighbours: return the network functions and disks that an instance has by Nova's own PCI
        passthrough
    :param lost_reasons: the reasons why new guests did not start
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
        """Begin to bind a new guest's cards to vfio-pci, on a KVM host; do not wait for it.

        That may take seconds, in which Nova prepares the guest's network and volumes. Errors are
        ignored, because the guest's start tries again and raises them.
        """
        if self.ways.whole.shares_driver or not self.assigned:
            return  # then cards are not taken from the host
        with contextlib.suppress(Exception):
            held = self.assigned.held_of(self.assigned.whole, instance.resources)
            flavor_request = records.request_of(instance)
            cards = _cards([holding.grant for holding in held])
            # No card is taken from the host for a guest that cannot start with it.
            self.ways.whole.refuse(instance, flavor_request, cards)
            for card in cards:
                self.ways.host_hooks.begin(card, instance.uuid)

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
        """Wrap the start of a guest by libvirt; yield whether the instance got new GPUs for it.

        First claim new GPUs for an instance that released its own when it was stopped. Then compare
        the instance's devices with its flavor, reserve them until libvirt lists the guest, and
        prepare them.

        :param spawning: whether Nova spawns the instance: it is new, unshelved, evacuated or
            rebuilt
        :param arriving: whether the instance was moved here, or resized
        :param running: whether the guest will run, and not only be defined
        :param end: stop the instance's guest; only for a start before which Nova stops it anyway.
            An instance with the wrong GPUs after a failed move then releases these, and gets GPUs
            for its flavor
        :raises nova.exception.ComputeResourcesUnavailable: if another host may start the guest
        :raises nova.exception.BuildAbortException: while *spawning*, if no other host could
        :raises nova.exception.InstanceUnacceptable: if no other host could, and not *spawning*
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
                    flavor = request.of({})  # the instance gets GPUs at its next start
                held = self._held(instance)
                holdings = list(itertools.chain.from_iterable(held.values()))
                devices = frozenset(holding.device for holding in holdings)
                grants = [holding.grant for holding in holdings]
                # First, because devices are back in the pool as soon as a hold ends or is refused.
                before = stack.enter_context(self.holding(instance.uuid, devices))
                self._compare(
                    *(instance, flavor, held), spawning=spawning, arriving=arriving, again=again
                )
                if spawning:
                    quota.recheck(self.assigned.placement, instance, flavor)
                if spawning and not devices:
                    stranding.refuse(instance, flavor, self.free, self.left)
                if spawning or arriving or again:
                    self.proofs.refuse_unjudged(self._new(instance, devices - before))
                for delivery, own in self._deliveries(grants):
                    if own:
                        delivery.refuse(instance, flavor, own)
                    for card in _cards(own):
                        delivery.prepare(card, instance.uuid)
                    self.ways.sets.join(_devices_of(own), instance.uuid)
                # From now on the guest may use the devices.
                self.proofs.revoke(devices)
                self.ledger.was_used(devices)
                self.vgpus.make(instance.uuid, devices)
            if spawning or arriving or again:
                # A rebuilt instance is spawned with devices that it had *before*.
                products = {holding.device: holding.group.product for holding in holdings}
                new = {dev: product for dev, product in products.items() if dev not in before}
                self.reporter.claimed(instance, new)
            if devices:
                words = ", ".join(str(holding.device) for holding in holdings)
                LOG.info("Starting with GPUs %s", words, instance=instance)
            with (
                _in_novas_words(instance, spawning),
                libvirt_errors.translated(instance.uuid, grants),
                self.vgpus.start(devices),
            ):
                yield again

    def _new(self, instance: objects.Instance, devices: frozenset[Device]) -> frozenset[Device]:
        """Return those of *devices* that no guest of the instance had before.

        A rebuild recovers an instance with the devices that the database counts for it.
        """
        if instance.task_state != task_states.REBUILD_SPAWNING:
            return devices
        now = self.ledger.now
        return devices - now.had_by(instance.uuid) - now.counted_for(instance.uuid)

    @contextlib.contextmanager
    def start_or_stay(self, instance: objects.Instance, **kwargs: Any) -> Iterator[bool | None]:
        """Wrap a rescue or hard reboot, which Nova must not answer with ERROR for want of GPUs.

        Yield the result of :meth:`starting`, or ``None`` if the instance released its GPUs and gets
        none now. After ``None`` the caller must do nothing, so that the instance stays as it is,
        and :meth:`nova_gpu.virt.lifecycle.refusals.Refusals.end_start` raises the error later.
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
        """Wrap a rescue; yield whether the caller must carry it out.

        If not, it is refused, and :meth:`nova_gpu.virt.lifecycle.refusals.Refusals.end_start`
        raises the error later.

        :param define_again: define the domain anew; called if the instance got new GPUs, because
            an unrescue starts the domain as it was defined before the rescue
        """
        if self.refusals.is_rescue_refused(instance):
            yield False
            return
        with self.start_or_stay(instance) as again:
            if again:
                define_again()
            yield again is not None

    def is_released(self, instance: objects.Instance) -> bool:
        """Return whether the instance released its GPUs at a stop and has none now."""
        return self.stops.is_released(instance, records.request_of(instance))

    def rebuild(self, instance: objects.Instance) -> None:
        """Claim GPUs for an instance that released its own, if Nova rebuilds it.

        Call this when Nova shuts down the guest: its disk still exists, so a refusal does no harm.

        :raises nova.exception.InstanceFaultRollback: if it gets none; the instance stays as it was
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
        """Reserve *devices*, and those that the guest had before, while the guest is started.

        Yield the devices that the guest had before. They may include cards that Nova itself passes
        through by a PCI alias, which would seem free while the guest has no domain.

        :raises DeviceUnavailable: if another start or domain has one of the devices
        :raises DomainsUnreadable: if libvirt does not list the domains
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
                self.ways.host_hooks.started(instance_uuid)

    def is_reboot_hard(self, instance: objects.Instance) -> bool:
        """Return whether a soft reboot of the instance must become a hard one.

        A soft reboot starts the domain as it is defined, and its device nodes may by now lead to
        another card; a hard reboot defines the domain anew.
        """
        if not self.ways.whole.needs_hard_reboot:
            return False
        supplies, resources = self.assigned.supplies, instance.resources or ()
        has_any = any(supply.counts(resource) for resource in resources for supply in supplies)
        return has_any or bool(self.ledger.now.kept_by(instance.uuid))

    def add_gpus(
        self, instance: objects.Instance, guest: vconfig.LibvirtConfigGuest
    ) -> vconfig.LibvirtConfigGuest:
        """Add the instance's GPUs to the configuration of its guest; return the configuration.

        :raises nova.exception.ComputeResourcesUnavailable: if the guest cannot have one of them now
        """
        if not self.assigned:
            return guest
        with _in_novas_words(instance, spawning=False):
            flavor_request, held = records.request_of(instance), self._held(instance)
            holdings = list(itertools.chain.from_iterable(held.values()))
            self._refuse_unheld(instance, {holding.device for holding in holdings})
            elements: list[GuestDevice] = []
            for delivery, own in self._deliveries([holding.grant for holding in holdings]):
                elements += delivery.render(instance, flavor_request, guest, own)
            if holdings:
                parts = [holding.group.facts for holding in held[self.assigned.parts]]
                _tell(instance, elements, parts)
        return guest_config.with_cliques(guest)

    def _held(self, instance: objects.Instance) -> Held:
        """Return the instance's devices of this host, by inventory: whole cards and parts.

        On a host without GPUs the instance's resources are not read.
        """
        return self.assigned.held(instance.resources if self.assigned else ())

    def _deliveries(self, grants: Collection[Grant]) -> Iterator[tuple[Delivery, list[Grant]]]:
        return self.ways.deliveries(grants, self.vgpus.cards.look.kind)

    def _refuse_unheld(self, instance: objects.Instance, devices: Set[Device]) -> None:
        """Refuse to add devices to a guest's configuration that :meth:`holding` has not reserved.

        It happens if Nova starts a guest by a method that this driver does not override.

        :raises DeviceUnavailable: if one of *devices* is not reserved for the instance
        """
        for device in sorted(devices - self.ledger.now.held_for(instance.uuid), key=str):
            raise exception.DeviceUnavailable(
                str(device),
                "Nova starts the guest in a way that this nova-gpu does not know, so that no check "
                "prevents another guest from having the same GPU",
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
        """Compare the instance's devices with its flavor.

        :raises RequestMismatch: if the flavor requests other devices
        :raises BetterElsewhere: while *spawning*, if the cards are not as close to each other, or
            to the instance's network functions and disks, as the flavor requires
        :raises NoneFree: for the same reason, if the instance got the devices *again*
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
                    "check that [filter_scheduler]enabled_filters of nova-scheduler has GPUFilter, "
                    f"and change a flavor to one with {supply.noun} only by a resize",
                )
            if is_new and (
                reason := supply.apart(flavor_request, own, hypervisor_type)
                or self._not_beside(instance, flavor_request, own)
            ):
                if spawning:
                    raise exception.BetterElsewhere(
                        None, reason, "another host may have free GPUs that are close enough"
                    )
                if again:
                    raise exception.NoneFree(reason, "start it again when other GPUs are free")
                # Nova does not schedule a moved instance again: an error would lose the instance.
                LOG.warning(
                    "Starting the moved instance nevertheless: %s", reason, instance=instance
                )

    def _not_beside(
        self,
        instance: objects.Instance,
        flavor_request: FlavorRequest,
        own: Collection[Holding[Any, Any]],
    ) -> str | None:
        """Return why cards in *own* are too far from the instance's network functions or disks.

        Return ``None`` if they are near enough, or the flavor does not require it.
        """
        if not (flavor_request.whole and flavor_request.whole.arrangement.insists_on_near):
            return None
        cards = _cards([holding.grant for holding in own])
        return flavor_mismatch.not_beside(
            flavor_request.whole.arrangement, cards, self.neighbours(instance)
        )


def _devices_of(grants: Collection[Grant]) -> list[Device]:
    return [grant.address if isinstance(grant, GPU) else grant for grant in grants]


def _cards(grants: Collection[Grant]) -> list[GPU]:
    return [grant for grant in grants if isinstance(grant, GPU)]


def _tell(
    instance: objects.Instance, cards: Sequence[GuestDevice], parts: Iterable[VGPUType]
) -> None:
    """Describe an instance's GPUs in its system metadata, from which its guest reads them.

    Nova saves the metadata when the guest has started. They are saved here if a config drive with
    dynamic vendordata is made before that: the vendordata service reads the saved metadata.
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
    """Wrap a start: log nova-gpu's errors, and raise Nova's, which the instance's user reads."""
    try:
        yield
    except exception.GPUError as error:
        if isinstance(error, exception.GuestError):
            error.host = CONF.host
        counters.failed(error)
        # The log also names what the user must not see. And if a reboot fails while the guest runs,
        # Nova does not log the reason.
        LOG.warning("Refused to start the guest: %s", error, instance=instance)
        raise refusals.expected(_in_novas_word(error, instance, spawning)) from error


def _in_novas_word(
    error: exception.GPUError, instance: objects.Instance, spawning: bool
) -> nova_exception.NovaException:
    """Return the error of Nova that replaces *error*, with its text for the instance's user.

    Nova tries another host only after ComputeResourcesUnavailable.
    """
    reason = str(error)
    if isinstance(error, exception.GuestError):
        reason = error.user_text
    if isinstance(error, exception.GuestCannotStart):
        return nova_exception.ComputeResourcesUnavailable(reason=reason)
    if spawning:
        return nova_exception.BuildAbortException(instance_uuid=instance.uuid, reason=reason)
    return nova_exception.InstanceUnacceptable(instance_id=instance.uuid, reason=reason)
