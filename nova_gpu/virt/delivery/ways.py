# SPDX-License-Identifier: Apache-2.0
"""The ways in which a host gives devices to guests: the one place that names all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nova_gpu.conf import CONF
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Slot
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.pci import selection
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.host.vgpu import division, virtual_functions
from nova_gpu.virt import sets
from nova_gpu.virt.delivery import bind_failures, mig_instance, plain_function
from nova_gpu.virt.delivery.delivery import Delivery, Grant
from nova_gpu.virt.delivery.host_hooks import HostHooks
from nova_gpu.virt.delivery.mediated_device import MediatedDevices
from nova_gpu.virt.delivery.mig_instance import MIGInstances
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.delivery.pci_passthrough import PCIPassthrough
from nova_gpu.virt.delivery.peer_access import Peers
from nova_gpu.virt.delivery.plain_function import PlainFunctions
from nova_gpu.virt.delivery.typed_function import TypedFunctions
from nova_gpu.virt.delivery.vgpu_types import VGPUTypes
from nova_gpu.virt.sets import NoSets, Sets

if TYPE_CHECKING:
    from nova_gpu.virt.usage.ledger import Ledger

_Grant = TypeVar("_Grant", Grant, Device)


class Ways:
    """The ways of a host by ``[libvirt]virt_type``: one for whole cards, some for their parts.

    :param kept: why a card stays the host's own display
    :param ledger: who has what, where guests are given cards, as nova-compute alone does
    :param libvirt_version: of the host, as libvirt counts; ``None`` where it is not known
    :param qemu_version: the same of its QEMU
    :raises InvalidOption: where an option cannot be used
    :raises nova.exception.NovaException: where Nova cannot read ``[pci]device_spec``
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
        functions = virtual_functions.parse(CONF.gpu.virtual_functions)
        profiles = mig_layout.parse_profiles(CONF.gpu.mig_profile)
        self.sets: Sets = NoSets()
        self.custody = HostHooks()
        self._peers = Peers(roots, libvirt_version, qemu_version)
        # The option by which cards are divided, its value by address or product, and what does it
        self._option, self.wanted = "virtual_functions", dict[str, Any](functions)
        self.divide: Callable[[str, Any], None] = plain_function.divide
        self.whole: Delivery
        self._read: Callable[[Iterable[GPU], division.Told], dict[PciAddress, DividedCard]]
        parts: Sequence[Delivery]
        if DeliveryMode.of_whole_cards(CONF.libvirt.virt_type) is DeliveryMode.LXC:
            self.whole = containers = MIGInstances(roots, reason_kept, serves=ledger is not None)
            self.custody = containers.custody
            parts = [containers]
            self._option, self.wanted = "mig_profile", dict[str, Any](profiles)
            self.divide = mig_instance.divide
            shares = CONF.gpu.share_gpu_instances
            self._read = lambda cards, _: mig_layout.divided(cards, roots, shares=shares)
        else:
            self.sets = sets.of_machines(roots, ledger)
            spec = DeviceSpec(CONF.pci.device_spec)
            self.whole = machines = PCIPassthrough(
                roots, spec, bind_failures.folder(), ledger, self._peers
            )
            if ledger is not None:
                self.custody = machines.bindings
            parts = [
                MediatedDevices(roots),
                TypedFunctions(roots, spec, libvirt_version),
                PlainFunctions(roots, spec),
            ]
            self._types = VGPUTypes(roots)
            self._readings: dict[PciAddress, division.Reading] = {}
            self._read = self._divided_for_machines
        self.parts: Mapping[Kind, Delivery] = {part.kind: part for part in parts}

    def part(self, kind: Kind) -> Delivery:
        """Return the way in which a part of this kind is given.

        The host's first where it has none such, of a card that is gone or was another one.
        """
        return self.parts.get(kind) or next(iter(self.parts.values()))

    def deliveries(
        self, grants: Iterable[_Grant], kind: Callable[[Slot], Kind]
    ) -> Iterator[tuple[Delivery, list[_Grant]]]:
        """Yield the *grants* of a guest, or devices alone, by the way of delivery.

        First that of whole cards, which looks after guests that have none, too.

        :param kind: the kind of the part at a slot
        """
        ordered = [(self._delivery(pair, kind), pair) for pair in grants]
        if not ordered or ordered[0][0] is not self.whole:
            yield self.whole, []
        for delivery, own in itertools.groupby(ordered, key=lambda pair: pair[0]):
            yield delivery, [pair for _, pair in own]

    def _delivery(self, grant: Grant | Device, kind: Callable[[Slot], Kind]) -> Delivery:
        return self.part(kind(grant)) if isinstance(grant, Slot) else self.whole

    # What the host has

    def look_again(self) -> None:
        """Clear what was read of the host's roots, which every claim asks for."""
        self._peers.look_again()

    def reach_each_other(self, cards: Collection[GPU]) -> bool:
        """Return whether a guest's driver can be told that *cards* reach each other's memory."""
        return not self.whole.shares_driver and self._peers.obstacle(cards) is None

    def divided(self, cards: Iterable[GPU], facts: division.Told) -> dict[PciAddress, DividedCard]:
        """Return the *cards* that are divided, or can be.

        :param facts: as :func:`nova_gpu.host.vgpu.division.divided` has it
        :raises OSError: where the kernel does not tell which mediated devices there are
        """
        return self._read(cards, facts)

    def _divided_for_machines(
        self, cards: Iterable[GPU], facts: division.Told
    ) -> dict[PciAddress, DividedCard]:
        gpus = tuple(cards)
        divided = division.divided(gpus, self.roots, facts, self._readings)
        return self._types.complete(gpus, divided)

    def undivided(self, gpu: GPU) -> str | None:
        """Return why a card that is not divided is not given whole, by the options."""
        if (wanted := selection.said_of(gpu, self.wanted)) is None:
            return None
        return (
            f"[gpu]{self._option} has it divided ({wanted}), and it is not; see nova-compute's log "
            "from its start, or take it out of the option to have it offered whole"
        )

    def obstacle(self, gpu: GPU, card: DividedCard) -> str | None:
        """Return why guests cannot have parts of *card*."""
        by_kind: dict[Kind, list[PciAddress]] = {}
        for function, parent in card.parents.items():
            by_kind.setdefault(parent.kind, []).append(function)
        try:
            reasons = (self.part(kind).obstacle(gpu, by_kind[kind]) for kind in by_kind)
            return next(filter(None, reasons), None)
        except (OSError, ValueError) as error:
            return passthrough.unread(error)
