# SPDX-License-Identifier: Apache-2.0
"""The deliveries of a host, by its options: the only module that names all implementations."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import vendors
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot, VGPUKind
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.pci import selection
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.host.vgpu import division, preparation, virtual_functions
from nova_gpu.virt import card_sets
from nova_gpu.virt.card_sets import Sets
from nova_gpu.virt.delivery import container_nodes, vgpu_deliveries
from nova_gpu.virt.delivery.container_nodes import ContainerNodes
from nova_gpu.virt.delivery.delivery import Delivery, Grant
from nova_gpu.virt.delivery.host_hooks import HostHooks
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.delivery.pci_passthrough import PCIPassthrough
from nova_gpu.virt.delivery.peer_access import Peers
from nova_gpu.virt.delivery.vgpu_types import VGPUTypes

if TYPE_CHECKING:
    from nova import objects

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.virt.usage.ledger import Ledger

_Grant = TypeVar("_Grant", Grant, Device)


class Deliveries:
    """The deliveries of a host, by ``[libvirt]virt_type``: one of whole cards, others of parts.

    :param reason_kept: return why a card stays with the host as its display, else ``None``
    :param ledger: the devices of each instance, in nova-compute; ``None`` in the commands, which
        give no devices to guests
    :param libvirt_version: return the version of libvirt as one number (10000000 is 10.0.0), or
        ``None`` if it is unknown
    :param qemu_version: return the version of QEMU, likewise
    :raises InvalidOption: if the value of an option is invalid
    :raises nova.exception.NovaException: if Nova cannot parse ``[pci]device_spec``
    """

    def __init__(
        self,
        roots: Roots,
        reason_kept: Callable[[GPU], str | None],
        ledger: Ledger | None = None,
        libvirt_version: Callable[[], int | None] = lambda: None,
        qemu_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.roots = roots
        self.unbound = pathlib.Path(NOVAS.state_path, "gpu-unbound")
        functions = virtual_functions.parse(CONF.gpu.virtual_functions)
        profiles = mig_layout.parse_profiles(CONF.gpu.mig_profile)
        self.sets = Sets()
        self.host_hooks = HostHooks()
        self._peers = Peers(roots, libvirt_version, qemu_version)
        # The option that states how cards are divided, its values by address or product, and the
        # function that divides a card
        self._option, self.wanted = "virtual_functions", dict[str, Any](functions)
        self.divide: Callable[[str, Any], None] = vgpu_deliveries.divide
        # The values of other options, which this host may ignore
        self._others: dict[str, Mapping[str, object]] = {
            "vgpu_mixed_sizes": preparation.parse_sizes(CONF.gpu.vgpu_mixed_sizes),
            "vgpu_scheduler": preparation.parse_schedulers(CONF.gpu),
        }
        self.whole: Delivery
        self._read: Callable[
            [Iterable[GPU], division.TypesByFunction], dict[PciAddress, DividedCard]
        ]
        parts: Sequence[Delivery]
        if DeliveryMode.of_whole_cards(NOVAS.libvirt.virt_type) is DeliveryMode.LXC:
            self.whole = containers = ContainerNodes(roots, reason_kept, serves=ledger is not None)
            self.host_hooks = containers.host_hooks
            parts = [containers]
            self._option, self.wanted = "mig_profile", dict[str, Any](profiles)
            self._others["virtual_functions"] = functions
            self.divide = container_nodes.divide
            shares = CONF.gpu.share_gpu_instances
            self._read = lambda cards, _: mig_layout.divided(cards, roots, shares=shares)
        else:
            self._others["mig_profile"] = profiles
            self.sets = card_sets.of_machines(roots, ledger)
            spec = DeviceSpec(NOVAS.pci.device_spec)
            self.whole = machines = PCIPassthrough(
                roots, spec, self.unbound, ledger, self._peers, libvirt_version
            )
            if ledger is not None:
                self.host_hooks = machines.bindings
            parts = vgpu_deliveries.of_machines(roots, spec, libvirt_version)
            self._types = VGPUTypes(roots)
            self._readings: dict[PciAddress, division.Reading] = {}
            self._modes: Mapping[PciAddress, str] = {}
            self._read = self._divided_for_machines
        self.parts: Mapping[VGPUKind, Delivery] = {part.kind: part for part in parts}

    def part(self, kind: VGPUKind) -> Delivery:
        """Return the delivery of the parts that functions of this *kind* provide.

        If the host has none of this kind, because the card is gone or was replaced, return any
        delivery of parts.
        """
        return self.parts.get(kind) or next(iter(self.parts.values()))

    def by_grant(
        self, grants: Iterable[_Grant], kind: Callable[[Slot], VGPUKind]
    ) -> Iterator[tuple[Delivery, list[_Grant]]]:
        """Yield each delivery, with those of a guest's *grants* that it delivers.

        The delivery of whole cards comes first, even without grants: it also handles guests that
        have no whole card.

        :param grants: the guest's grants, or only its devices, whole cards first
        """
        ordered = [(self._delivery(pair, kind), pair) for pair in grants]
        if not ordered or ordered[0][0] is not self.whole:
            yield self.whole, []
        for delivery, own in itertools.groupby(ordered, key=lambda pair: pair[0]):
            yield delivery, [pair for _, pair in own]

    def refuse(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        grants: Iterable[Grant],
        kind: Callable[[Slot], VGPUKind],
    ) -> None:
        """Refuse a guest that libvirt could not start with *grants*."""
        for delivery, own in self.by_grant(grants, kind):
            if own:
                delivery.refuse(instance, request, own)

    def _delivery(self, grant: Grant | Device, kind: Callable[[Slot], VGPUKind]) -> Delivery:
        return self.part(kind(grant)) if isinstance(grant, Slot) else self.whole

    # State of the host

    def look_again(self) -> None:
        self._peers.look_again()

    def reach_each_other(self, cards: Collection[GPU]) -> bool:
        """Return whether *cards* can have peer access to each other in a KVM guest."""
        return not self.whole.shares_driver and self._peers.obstacle(cards) is None

    def divided(
        self, cards: Iterable[GPU], facts: division.TypesByFunction
    ) -> dict[PciAddress, DividedCard]:
        """Return the vGPU types and functions of those *cards* that are or can be divided.

        :param facts: vGPU types that the cards' driver may not list now, by function and type id
        :returns: the division of each card, by the card's address
        :raises OSError: if the kernel's list of mediated devices cannot be read
        """
        return self._read(cards, facts)

    def _divided_for_machines(
        self, cards: Iterable[GPU], facts: division.TypesByFunction
    ) -> dict[PciAddress, DividedCard]:
        gpus = tuple(cards)
        self._modes = vgpu_deliveries.modes(gpus, self.roots, self._modes)
        divided = division.divided(gpus, self.roots, facts, self._readings, self._modes)
        return self._types.complete(gpus, divided)

    def forget_facts(self, card: PciAddress) -> None:
        """Have NVML asked again about the vGPU types of a card of a KVM host."""
        self._types.forget(card)

    def undivided(self, gpu: GPU) -> str | None:
        """Return why *gpu* is not offered whole: an option divides it, but it is not divided yet.

        Return ``None`` if no option divides it.
        """
        if (wanted := selection.value_of(gpu, self.wanted)) is None:
            return None
        return (
            f"[gpu]{self._option} divides it ({wanted}), but it is not divided; see nova-compute's "
            "log from its start, or take it out of the option to offer it whole"
        )

    def ignored(self, gpu: GPU) -> str | None:
        """Return which option names *gpu* in vain on this host, and the remedy; ``None`` if none.

        So are options that exclude each other. The operator wants it to be another card than it is,
        so no guest gets it. Other cards are not concerned: hosts of KVM and of containers may share
        a nova.conf.
        """
        reason = "this host is for containers, whose cards have no virtual functions"
        if not self.whole.shares_driver:
            is_nvidias = gpu.product.vendor_id == vendors.NVIDIA
            if is_nvidias and selection.value_of(gpu, self.wanted) is not None:
                what = preparation.contradiction(preparation.of(gpu, CONF.gpu))
                return what and f"{what}; take the card out of one of them"
            reason = "it is for cards of NVIDIA's that [gpu]virtual_functions names"
        for option, values in self._others.items():
            if selection.value_of(gpu, values):
                remedy = "take the card out of it in this host's nova.conf"
                return f"[gpu]{option} names it in vain: {reason}; {remedy}"
        return None

    def obstacle(self, gpu: GPU, card: DividedCard) -> str | None:
        """Return why guests cannot get vGPUs of *gpu*, and the remedy; ``None`` if they can."""
        by_kind: dict[VGPUKind, list[PciAddress]] = {}
        for function, parent in card.parents.items():
            by_kind.setdefault(parent.kind, []).append(function)
        try:
            reasons = (self.part(kind).obstacle(gpu, by_kind[kind]) for kind in by_kind)
            return next(filter(None, reasons), None)
        except (OSError, ValueError) as error:
            return passthrough.unread(error)

    def part_obstacles(self, gpu: GPU, card: DividedCard) -> dict[Slot, str]:
        """Return why guests cannot get MIG instances of *gpu*, and the remedy, by slot."""
        slots = vgpu_capacity.all_instances(card)
        reasons = {slot: self.whole.part_obstacle(gpu, slot) for slot in slots}
        return {slot: reason for slot, reason in reasons.items() if reason}
