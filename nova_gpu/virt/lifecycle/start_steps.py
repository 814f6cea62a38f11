# SPDX-License-Identifier: Apache-2.0
"""Checks, reservation and preparation of an instance's GPUs before libvirt starts its guest."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from nova import exception as nova_exception
from nova import objects
from nova.compute import task_states
from nova.virt import configdrive
from nova.virt.libvirt import config as vconfig
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception, flavor_mismatch, metadata_text, names
from nova_gpu.core.device import Device
from nova_gpu.core.guest import devices as guest_devices
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.virt import counters, libvirt_errors
from nova_gpu.virt.delivery import domain_xml
from nova_gpu.virt.delivery.deliveries import Deliveries
from nova_gpu.virt.expected_errors import expected
from nova_gpu.virt.inventory import counting, stranding
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.counting import Counting
from nova_gpu.virt.inventory.exchange import Exchange, Holdings
from nova_gpu.virt.lifecycle.lost_reasons import LostReasons
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.lifecycle.refusals import Refusals
from nova_gpu.virt.lifecycle.start import Kind, Start, Step
from nova_gpu.virt.lifecycle.stops import Stops
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage.ledger import Ledger, Owner
from nova_gpu.virt.usage.reader import UsageReader

LOG = logging.getLogger(__name__)

# The tasks in which Nova puts the instance in ERROR for any error of the driver
_STAYS = (task_states.RESCUING, task_states.REBOOT_STARTED_HARD)
# A soft reboot of a container with GPUs becomes a hard one.
_REBOOTS = (task_states.REBOOT_STARTED, task_states.REBOOT_STARTED_HARD)
_UNCOUNTED = (exception.NotCounted, exception.QuotaExceeded)


@dataclasses.dataclass(frozen=True, slots=True)
class Starts:
    """The starts of guests on one host.

    :param deliveries: the deliveries of the host
    :param lost_reasons: the reasons why new guests did not start
    """

    deliveries: Deliveries
    vgpus: VGPUs
    usage_reader: UsageReader
    reporter: Reporter
    stops: Stops
    refusals: Refusals
    exchange: Exchange
    lost_reasons: LostReasons
    compute_host: str = dataclasses.field(default_factory=lambda: str(CONF.host))

    @property
    def counting(self) -> Counting:
        return self.stops.counting

    @property
    def assigned(self) -> InstanceDevices:
        return self.counting.assigned

    @property
    def ledger(self) -> Ledger:
        return self.counting.ledger

    @property
    def proofs(self) -> Proofs:
        return self.vgpus.proofs

    def hypervisor_type(self) -> str:
        """Return the type that the host reports to Nova, ``LXC`` or ``QEMU``."""
        return str(self.stops.host.get_driver_type())

    def prepare(self, instance: objects.Instance) -> None:
        """Begin to bind a new guest's cards to vfio-pci, on a KVM host; do not wait for it.

        That may take seconds, in which Nova prepares the guest's network and volumes. Errors are
        ignored, because the guest's start tries again and raises them.
        """
        if self.deliveries.whole.shares_driver or not self.assigned:
            return  # then cards are not taken from the host
        with contextlib.suppress(Exception):
            self.exchange.make(instance, moves_cells=True, waits=True)
            whole = self.assigned.card_inventory
            held: Holdings = {whole: self.assigned.held_of(whole, instance.resources)}
            start = Start(Kind.SPAWN, instance, held=held)
            # No card is taken from the host for a guest that cannot start with it, or may swap it.
            if self.exchange.remote(instance, held):
                return
            self.deliveries.whole.refuse(instance, start.flavor, start.cards)
            for card in start.cards:
                self.deliveries.host_hooks.begin(card, instance.uuid)

    @contextlib.contextmanager
    def spawning(self, instance: objects.Instance) -> Iterator[Start]:
        """Wrap a start for which Nova calls the driver's ``spawn``, and has claimed the devices.

        Yield the start.

        :raises nova.exception.ComputeResourcesUnavailable: if another host may start the guest
        :raises nova.exception.BuildAbortException: if no other host could
        """
        start = Start(Kind.of_spawn(instance, self.compute_host), instance)
        is_rebuild = start.kind is Kind.REBUILD
        with (
            self.lost_reasons.noting(instance.uuid),
            self.counting.doubted(instance) if is_rebuild else contextlib.nullcontext(),
            _in_novas_words(start),
            self._given(start) as ready,
        ):
            yield ready

    @contextlib.contextmanager
    def starting(
        self, instance: objects.Instance, kind: Kind, end: Callable[[], None] | None = None
    ) -> Iterator[Start | None]:
        """Wrap another start of a guest by libvirt: have its devices counted before.

        Yield the start. Yield ``None`` if the instance's GPUs cannot be counted now, and Nova would
        answer an error with ERROR: then the caller must do nothing, so that the instance stays as
        it is, and :meth:`nova_gpu.virt.lifecycle.refusals.RefusedStarts.end` raises the error. It
        does not raise that of a reboot which the service repeats when it starts.

        :param end: stop the instance's guest, before which its wrong GPUs are not released
        :raises nova.exception.ComputeResourcesUnavailable: if another host may start the guest
        :raises nova.exception.InstanceUnacceptable: if no other host could
        """
        self.refusals.starts.begin(instance)
        with contextlib.ExitStack() as stack:
            ready = None
            try:
                ready = stack.enter_context(self._counted_and_given(Start(kind, instance), end))
            except nova_exception.NovaException as error:
                is_uncounted = isinstance(error.__cause__, _UNCOUNTED)
                refused, task = self.refusals.starts, instance.task_state
                stays = task in _STAYS and (is_uncounted or counting.is_without(instance))
                is_repeated = refused.is_repeating and task in _REBOOTS
                if not (stays or (is_repeated and kind is Kind.REBOOT)):
                    raise
                refused.refuse(instance, error)
            yield ready

    @contextlib.contextmanager
    def _counted_and_given(self, start: Start, end: Callable[[], None] | None) -> Iterator[Start]:
        with _in_novas_words(start), contextlib.ExitStack() as stack:
            if end and self.assigned and start.takes(Step.GIVE_UP):
                self.stops.release_wrong(start.instance, end)
            if self.assigned and start.takes(Step.COUNT):
                start = stack.enter_context(self._counted(start))
            yield stack.enter_context(self._given(start))

    @contextlib.contextmanager
    def _given(self, start: Start) -> Iterator[Start]:
        """Choose, reserve, judge and prepare the devices of a start; if it fails, undo that."""
        instance = start.instance
        with contextlib.ExitStack() as stack:
            try:
                # In a live migration the source has been told which vGPUs the guest gets.
                is_arriving = instance.task_state == task_states.MIGRATING
                if start.chooses and self.assigned and not is_arriving:
                    self.exchange.make(instance, moves_cells=start.defines)
                start = self._with_devices(start)
                # First, because devices are back in the pool as soon as a hold ends or is refused.
                had = stack.enter_context(self.holding(instance.uuid, start.devices))
                start = dataclasses.replace(start, had=had)
                start = dataclasses.replace(start, overruled=self._judge(start))
                self._prepare(start)
            except (exception.GPUError, nova_exception.NovaException):
                if start.kind is Kind.SPAWN:  # else Nova counts a failed build of this host
                    self.counting.tracker.refused_build()
                raise
            stack.enter_context(self._billed(start))
            stack.enter_context(libvirt_errors.translated(instance.uuid, start.grants))
            stack.enter_context(self.vgpus.start(instance, start.grants, is_new=start.is_new))
            yield start

    def _with_devices(self, start: Start) -> Start:
        """Return *start* with the devices that the instance has on this host.

        On a host without GPUs the instance's resources are not read.
        """
        resources = start.instance.resources if self.assigned else ()
        return dataclasses.replace(start, held=self.assigned.held(resources))

    @contextlib.contextmanager
    def _counted(self, start: Start) -> Iterator[Start]:
        """Have the instance's GPUs counted, or claim some; if the start fails, undo that."""
        claimed = self.counting.count(start.instance)
        try:
            yield dataclasses.replace(start, claimed=claimed)
        except BaseException:
            if claimed:
                self.stops.undo(start.instance)
            raise

    def _judge(self, start: Start) -> str | None:
        """Refuse a start that the instance's devices, its quota or this host rule out.

        Return what speaks against its devices and does not refuse it, ``None`` if nothing does.
        """
        overruled = self._compare(start)
        if start.takes(Step.RECHECK):
            self.counting.recheck(start.instance, start.flavor)
        if start.takes(Step.STRAND) and not start.devices:
            stranding.refuse(start.instance, start.flavor, self.assigned.free, self.assigned.left)
        if start.chooses:
            self.proofs.refuse_unjudged(start.new)
        self.deliveries.refuse(
            start.instance, start.flavor, start.grants, self.vgpus.cards.look.kind
        )
        return "; ".join(overruled) or None

    def _prepare(self, start: Start) -> None:
        for card in start.cards:
            self.deliveries.whole.prepare(card, start.instance.uuid)
        self.deliveries.sets.join(start.devices, start.instance.uuid)
        # What is made for a guest is removed after it; a whole card stays clean until it is given.
        self.proofs.revoke(start.slots)
        self.vgpus.make(start.instance.uuid, start.slots, start.flavor.vgpu_params)

    @contextlib.contextmanager
    def _billed(self, start: Start) -> Iterator[None]:
        """Report the devices that the instance gets, and their release if it loses them again."""
        instance = start.instance
        owner = Owner(instance.uuid, instance.project_id)
        new = {
            holding.device: holding.group.product
            for holding in start.holdings
            if start.is_new and holding.device in start.new
        }
        if start.is_new:
            self.reporter.claimed(owner, new, start.overruled)
        # The destination of a live migration becomes its host at the end, when the source's time is
        # over; that of an evacuation as well, but the source is dead.
        if start.kind is Kind.EVACUATION or instance.host == self.compute_host:
            self.reporter.begins(instance.uuid)
        if start.devices:
            words = ", ".join(str(holding.device) for holding in start.holdings)
            LOG.info("Starting with GPUs %s", words, instance=instance)
        try:
            yield
        except BaseException:
            if start.takes(Step.BILL):  # Nova calls the driver only after some of its failures
                self.reporter.released(owner, new)
            raise

    def rescue_image(
        self, instance: objects.Instance, image: objects.ImageMeta
    ) -> objects.ImageMeta:
        """Return the image of a rescue, with the machine type of an instance with GPUs.

        The host's default, for an image that states none, may not take its GPUs.
        """
        has_gpus = self.assigned and (instance.resources or counting.is_without(instance))
        if not has_gpus or image.properties.get("hw_machine_type") is not None:
            return image
        return domain_xml.with_machine_type(image, domain_xml.machine_type(instance))

    @contextlib.contextmanager
    def rescuing(
        self, instance: objects.Instance, define_again: Callable[[], None]
    ) -> Iterator[bool]:
        """Wrap a rescue; yield whether the caller must carry it out.

        If not, it is refused, and :meth:`nova_gpu.virt.lifecycle.refusals.RefusedStarts.end` raises
        the error later.

        :param define_again: define the domain anew; called if the instance got new GPUs, because
            an unrescue starts the domain as it was defined before the rescue
        """
        if self.refusals.starts.has(instance):
            yield False
            return
        with self.starting(instance, Kind.RESCUE) as start:
            if start and start.claimed:
                define_again()
            yield start is not None

    def rebuild(self, instance: objects.Instance) -> None:
        """Count and judge the GPUs of an instance that Nova is about to rebuild.

        Call this when Nova shuts down the guest: its disk still exists, so a refusal does no harm.

        :raises nova.exception.InstanceFaultRollback: if it is refused; the instance stays as it was
        """
        if instance.task_state != task_states.REBUILDING or not self.assigned:
            return
        try:
            # No other host is tried: the instance is here.
            start = Start(Kind.REBOOT, instance)
            with self.counting.doubted(instance), _in_novas_words(start), self._counted(start):
                start = self._with_devices(start)
                kind = self.vgpus.cards.look.kind
                self.deliveries.refuse(instance, start.flavor, start.grants, kind)
        except nova_exception.NovaException as error:
            # Nova keeps the new image's properties, and saves the instance with this one.
            if stated := domain_xml.defined_machine_type(self.stops.host, instance):
                instance.system_metadata.setdefault(names.IMAGE_MACHINE_TYPE, stated)
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
                self.deliveries.host_hooks.started(instance_uuid)

    def is_reboot_hard(self, instance: objects.Instance) -> bool:
        """Return whether a soft reboot of the instance must become a hard one.

        A soft reboot starts the domain as it is defined, and its device nodes may by now lead to
        another card; a hard reboot defines the domain anew.
        """
        if not self.deliveries.whole.needs_hard_reboot:
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
        kind = Kind.of_spawn(instance, self.compute_host)
        start = Start(kind if kind is Kind.REBUILD else Kind.REBOOT, instance)
        with _in_novas_words(start):
            start = self._with_devices(start)
            self._refuse_unheld(instance, start.devices)
            self.proofs.revoke(start.devices)
            elements: list[GuestDevice] = []
            for delivery, own in self.deliveries.by_grant(start.grants, self.vgpus.cards.look.kind):
                elements += delivery.render(instance, start.flavor, guest, own)
            if start.devices:
                parts = [
                    holding.group.facts for holding in start.held[self.assigned.vgpu_inventory]
                ]
                _tell(instance, elements, parts)
        return domain_xml.with_cliques(guest)

    def _refuse_unheld(self, instance: objects.Instance, devices: Set[Device]) -> None:
        """Refuse to add devices to a guest's configuration that :meth:`holding` has not reserved.

        It happens if Nova starts a guest by a method that this driver does not override.

        :raises DeviceUnavailable: if one of *devices* is not reserved for the instance
        """
        for dev in sorted(devices - self.ledger.now.held_for(instance.uuid), key=str):
            raise exception.DeviceUnavailable(
                str(dev),
                "Nova starts the guest in a way that this nova-gpu does not know, so that no check "
                "prevents another guest from having the same GPU",
                "install the nova-gpu that goes with this Nova (nova-gpu-status upgrade check)",
            )

    def _compare(self, start: Start) -> list[str]:
        """Compare the instance's devices with its flavor.

        Return the reasons against them with which it starts all the same.

        :raises RequestMismatch: if the flavor requests other devices
        :raises BetterElsewhere: while Nova spawns it, if the cards are not as close to each other,
            to the instance's NUMA cells, or to its network functions and disks, as the flavor
            requires
        :raises NoneFree: for the same reason, if the instance claimed the devices for this start
        """
        request, reasons, overruled = start.flavor, [], []
        if not start.devices and not (request.asks_for_gpus or request.vgpu_words):
            return []
        hypervisor_type = self.hypervisor_type()
        for supply, own in start.held.items():
            if reason := supply.mismatch(request, own, hypervisor_type, is_new=start.is_new):
                raise exception.RequestMismatch(
                    reason,
                    "check that [filter_scheduler]enabled_filters of nova-scheduler has GPUFilter, "
                    f"and change a flavor to one with {supply.noun} only by a resize",
                )
            if start.is_new:
                reasons.append(supply.apart(request, own, hypervisor_type))
        if start.is_new and request.whole and request.whole.arrangement.insists_on_near:
            near = self.exchange.neighbours.had_by(start.instance)
            reasons.append(flavor_mismatch.not_beside(request.whole.arrangement, start.cards, near))
        remote = start.chooses and self.exchange.remote(start.instance, start.held)
        if remote and start.takes(Step.ABORT):
            reasons.append(remote)
        elif remote:
            overruled.append(remote)
            # The instance is here, and may have had such GPUs before.
            LOG.warning(
                "Starting with GPUs on other NUMA nodes: %s", remote, instance=start.instance
            )
        for reason in filter(None, reasons):
            if start.takes(Step.ABORT):
                raise exception.BetterElsewhere(
                    None, reason, "another host may have free GPUs that are close enough"
                )
            if start.claimed:
                raise exception.NoneFree(reason, "start it again when other GPUs are free")
            overruled.append(reason)
            # Nova does not schedule a moved instance again: an error would lose the instance.
            LOG.warning(
                "Starting the moved instance nevertheless: %s", reason, instance=start.instance
            )
        return overruled


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
    items = guest_devices.to_metadata(guest_list)
    changed = metadata_text.store(names.GUEST_DEVICES, items, instance.system_metadata)
    if (
        changed
        and "DynamicJSON" in CONF.api.vendordata_providers
        and configdrive.required_by(instance)
    ):
        instance.save()


@contextlib.contextmanager
def _in_novas_words(start: Start) -> Iterator[None]:
    """Wrap a start: log nova-gpu's errors, and raise Nova's, which the instance's user reads."""
    uuid = start.instance.uuid
    try:
        yield
    except exception.GPUError as error:
        if isinstance(error, exception.GuestError):
            error.host = CONF.host
        counters.failed(error)
        # The log also names what the user must not see. And if a reboot fails while the guest runs,
        # Nova does not log the reason.
        LOG.warning("Refused to start the guest: %s", error, instance=start.instance)
        reason = error.user_text if isinstance(error, exception.GuestError) else str(error)
        failure = nova_exception.InstanceUnacceptable(instance_id=uuid, reason=reason)
        if isinstance(error, exception.GuestCannotStart) and start.kind is not Kind.REBUILD:
            # The only error after which Nova tries another host. Of a rebuild it would think that
            # the guest runs on.
            failure = nova_exception.ComputeResourcesUnavailable(reason=reason)
        elif start.takes(Step.ABORT):
            failure = nova_exception.BuildAbortException(instance_uuid=uuid, reason=reason)
        raise expected(failure) from error
