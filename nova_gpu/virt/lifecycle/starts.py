# SPDX-License-Identifier: Apache-2.0
"""No guest starts without its GPUs, and none with somebody else's."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Set

from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import config as vconfig
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.disclosure import Detail
from nova_gpu.core.flavor import compare
from nova_gpu.core.flavor.compare import Held
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GPU, GPUGroup
from nova_gpu.core.topology import topology
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt import counters, flavors, libvirt_errors
from nova_gpu.virt.host_gpus import HostGPUs
from nova_gpu.virt.inventory import provider_tree, stranding
from nova_gpu.virt.lifecycle import vgpu_starts
from nova_gpu.virt.usage import assigned

LOG = logging.getLogger(__name__)

_RESOURCE_CLASSES = (names.RESOURCE_CLASS, names.VGPU_RESOURCE_CLASS)


@contextlib.contextmanager
def starting(
    gpus: HostGPUs, instance: objects.Instance, *, spawning: bool = False, arriving: bool = False
) -> Iterator[None]:
    """Wrap every start of a guest: look at what the instance holds, compare it with its flavor and
    hold the GPUs until libvirt knows the guest.

    :param arriving: the instance was moved here, or resized
    :raises nova.exception.ComputeResourcesUnavailable: where another host could do better
    :raises nova.exception.BuildAbortException: while *spawning*, where no other host could
    :raises nova.exception.InstanceUnacceptable: the same, later in an instance's life
    """
    with contextlib.ExitStack() as stack:
        with _in_novas_words(instance, spawning):
            held = assigned.gpus_of(gpus, instance)
            parts = vgpu_starts.held(gpus, instance)
            cards = [gpu for _, gpu in held]
            slots = frozenset(slot for _, slot in parts)
            # First, because the pool has them back as soon as a hold ends or is refused.
            addresses = frozenset(gpu.address for gpu in cards)
            before = stack.enter_context(gpus.held(instance.uuid, addresses | slots))
            asked = flavors.request_of(instance)
            _compare(gpus, instance, asked, held, spawning=spawning, arriving=arriving)
            vgpu_starts.compare(asked, parts, given=spawning or arriving)
            if spawning and not cards and not slots:
                stranding.refuse(
                    instance,
                    asked,
                    gpus.free,
                    lambda: stranding.left(gpus.placement, gpus.nodename),
                )
            _make_ready(gpus, instance, cards, slots)
            gpus.go_to_guest(addresses | slots)
            gpus.vgpus.make(instance.uuid, slots)
        if spawning or arriving:
            # What is rebuilt in its place is spawned with what it has.
            new = [(group.product, slot) for group, slot in parts if slot not in before]
            gpus.bulletin.claimed(instance, [c for c in cards if c.address not in before], new)
        if addresses or slots:
            given = ", ".join([*map(str, sorted(addresses)), *map(str, sorted(slots))])
            LOG.info("Starting with GPUs %s", given, instance=instance)
        with (
            _in_novas_words(instance, spawning),
            libvirt_errors.translated(cards),
            gpus.vgpus.start(slots),
        ):
            yield


def is_reboot_hard(gpus: HostGPUs, instance: objects.Instance) -> bool:
    """Whether a soft reboot of the instance is a hard one.

    It starts the domain as it is, which may lead to another card by now; a hard reboot writes the
    domain anew.
    """
    if not gpus.delivery.needs_hard_reboot:
        return False
    has_any = any(each.resource_class in _RESOURCE_CLASSES for each in instance.resources or ())
    return has_any or bool(gpus.named_by(instance.uuid))


def add_gpus(gpus: HostGPUs, instance: objects.Instance, guest: vconfig.LibvirtConfigGuest) -> None:
    """Renders the GPUs the instance holds into the guest's configuration.

    :raises nova.exception.ComputeResourcesUnavailable: where one of them cannot be given now
    """
    if not gpus.has_gpus:
        return
    with _in_novas_words(instance, spawning=False):
        held = [gpu for _, gpu in assigned.gpus_of(gpus, instance)]
        slots = [slot for _, slot in vgpu_starts.held(gpus, instance)]
        _refuse_unheld(gpus, instance, {*(gpu.address for gpu in held), *slots})
        for delivery, own in gpus.deliveries([*held, *slots]):
            delivery.render(instance, guest, own)


def _refuse_unheld(gpus: HostGPUs, instance: objects.Instance, devices: Set[Device]) -> None:
    """So that a road of Nova's to a running guest which is not overridden is none.

    :raises DeviceUnavailable: where nobody has seen that no other guest has them
    """
    for each in sorted(devices - gpus.held_for(instance.uuid), key=str):
        raise exception.DeviceUnavailable(
            str(each),
            "Nova starts the guest in a way that this nova-gpu does not know, and nobody has seen "
            "that no other guest has it",
            "install the nova-gpu that goes with this Nova (nova-gpu-status upgrade check)",
        )


def _compare(
    gpus: HostGPUs,
    instance: objects.Instance,
    asked: FlavorRequest,
    held: list[tuple[GPUGroup, GPU]],
    *,
    spawning: bool,
    arriving: bool,
) -> None:
    """:raises RequestMismatch: where the flavor asks for other GPUs than the instance holds
    :raises BetterElsewhere: while *spawning*, where it insists on a topology that these do not have
    """
    if not held and not asked.asks_for_gpus:
        return
    whole = asked.whole
    circles = topology.circles(gpu for _, gpu in held)
    parts = [
        Held(
            count=1,
            architecture=group.product.architecture,
            traits=provider_tree.traits(group, gpus.hypervisor_type, ()),
            model=group.product.name,
            memory_mib=group.product.memory_mib,
            numa_node=gpu.numa_node,
            circle=circles[gpu.address],
        )
        for group, gpu in held
    ]
    reason = compare.gpu_mismatch(whole, parts, gpus.hypervisor_type)
    if whole and reason is None and (spawning or arriving):
        reason = compare.other_product(whole, parts)
    if reason:
        raise exception.RequestMismatch(
            reason,
            "is GPUFilter in [filter_scheduler]enabled_filters of nova-scheduler, and was its "
            "flavor changed to one with GPUs by a resize?",
        )
    if whole and (reason := compare.apart(whole, parts)):
        if spawning:
            raise exception.BetterElsewhere(None, reason, "another host may have them together")
        if arriving:
            # Nobody would schedule it a second time: an error would cost the instance.
            LOG.warning("The instance goes on all the same: %s", reason, instance=instance)


def _make_ready(
    gpus: HostGPUs, instance: objects.Instance, cards: list[GPU], slots: Collection[Slot]
) -> None:
    """:raises GuestUnfit, GuestCannotStart: where the guest cannot have them, or not now"""
    for delivery, own in gpus.deliveries([*cards, *sorted(slots)]):
        delivery.make_ready(instance, own)


@contextlib.contextmanager
def _in_novas_words(instance: objects.Instance, spawning: bool) -> Iterator[None]:
    """The one place where this package's errors become Nova's, which the instance's user reads."""
    try:
        yield
    except exception.GPUError as error:
        if isinstance(error, exception.GuestError):
            error.host = CONF.host
        counters.failed(error)
        # With what the instance's user is not told. Of a reboot that failed while the guest runs
        # Nova's own log does not say why.
        LOG.warning("The guest is not started: %s", error, instance=instance)
        raise _in_novas_word(error, instance, spawning) from error


def _in_novas_word(
    error: exception.GPUError, instance: objects.Instance, spawning: bool
) -> nova_exception.NovaException:
    """What the instance's user reads"""
    reason = str(error)
    if isinstance(error, exception.GuestError):
        reason = error.told(Detail(CONF.gpu.fault_detail))
    if isinstance(error, exception.GuestCannotStart):
        return nova_exception.ComputeResourcesUnavailable(reason=reason)
    if spawning:
        return nova_exception.BuildAbortException(instance_uuid=instance.uuid, reason=reason)
    return nova_exception.InstanceUnacceptable(instance_id=instance.uuid, reason=reason)
