# SPDX-License-Identifier: Apache-2.0
"""The delivery of whole cards to KVM and QEMU guests: PCI functions bound to vfio-pci.

:mod:`nova_gpu.virt.delivery.domain_xml` has the elements that a domain gets for them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import nova_gpu.privsep
from nova_gpu.conf import NOVAS
from nova_gpu.core import operation_refusals
from nova_gpu.core.guest import machine_types
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt.delivery import guest_address_space, pci_aliases, service
from nova_gpu.virt.delivery.delivery import Delivery, Grant, Operation, described
from nova_gpu.virt.delivery.peer_access import Peers

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.core.guest.devices import GuestDevice
    from nova_gpu.virt.delivery import binding
    from nova_gpu.virt.usage.ledger import Ledger

# Operations that are unsupported for a QEMU guest with a whole card or a part of one
UNSAVED: Mapping[Operation, str] = MappingProxyType(
    {
        Operation.SUSPEND: operation_refusals.SUSPEND_GPUS,
        Operation.SNAPSHOT: operation_refusals.SNAPSHOT_GPUS,
    }
)
_UNSUPPORTED: Mapping[Operation, str] = MappingProxyType(
    {**UNSAVED, Operation.LIVE_MIGRATION: operation_refusals.LIVE_CARDS}
)


class PCIPassthrough(Delivery):
    """The delivery of whole cards on a KVM or QEMU host.

    :param unbound: the folder of :class:`nova_gpu.host.state.quarantine.BindFailures`
    :param ledger: the devices of each instance, in nova-compute; ``None`` in the commands, which
        give no cards to guests
    """

    mode = DeliveryMode.PCI
    bindings: binding.Bindings

    def __init__(
        self,
        roots: Roots,
        device_spec: pci_aliases.DeviceSpec,
        unbound: pathlib.Path,
        ledger: Ledger | None,
        peers: Peers,
        libvirt_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._roots = roots
        self._device_spec = device_spec
        self._peers = peers
        self._libvirt_version = libvirt_version
        if ledger is not None:
            self.bindings = service.binding.Bindings(roots, ledger, unbound)
            self.share = self.bindings.share

    # Queries

    def obstacle(self, card: GPU, functions: Sequence[PciAddress] = ()) -> str | None:
        if NOVAS.libvirt.virt_type not in ("kvm", "qemu"):
            return f"[libvirt]virt_type = {NOVAS.libvirt.virt_type}; it must be kvm, qemu or lxc"
        try:
            reason = self._device_spec.obstacle(card.functions, self._roots)
        except (OSError, ValueError) as error:
            return passthrough.unread(error)
        room = guest_address_space.of_host(self._roots)
        return reason or passthrough.obstacle(card, self._roots, room)

    def unsupported(self, operation: Operation, *, has_gpus: bool = True) -> str | None:
        return _UNSUPPORTED.get(operation) if has_gpus else None

    def refuse(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        """Refuse a guest that libvirt could not start, before Nova destroys its former domain.

        :raises GuestUnfit: if its machine type has no PCI Express, or its cards' BARs do not fit
            into its address space
        :raises InvalidExtraSpec: for an invalid extra spec of its flavor
        :raises DeviceUnavailable: if a card cannot be read
        :raises BetterElsewhere: if the flavor requires peer access and this host cannot offer it
        """
        cards = _cards(grants)
        request.check_guest_options()
        machine_type = service.domain_xml.machine_type(instance)
        machine_types.refuse_without_pci_express(machine_type)
        if cards:
            tree = service.guest_tree.of(instance, request, cards, machine_type, self._roots)
            has_tree = tree is not None
            guest_address_space.refuse(instance, request, cards, self._roots, tree=has_tree)
            self._peers.cliques(instance, request, cards)

    # Actions

    def prepare(self, grant: Grant, instance_uuid: str) -> None:
        assert isinstance(grant, GPU)
        self.bindings.finish(grant, instance_uuid)

    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> list[GuestDevice]:
        if not (cards := _cards(grants)):
            return []
        tree = service.guest_tree.of(instance, request, cards, guest.os_mach_type, self._roots)
        if tree is not None:
            service.guest_tree.add_cells(guest, tree, self._roots)
        cliques = self._peers.cliques(instance, request, cards)
        service.domain_xml.add_cards(
            guest, cards, option_rom=request.option_rom, tree=tree, cliques=cliques
        )
        setting = guest_address_space.setting(
            instance,
            request,
            cards,
            self._roots,
            is_uefi=service.domain_xml.has_uefi(guest),
            tree=tree is not None,
        )
        service.domain_xml.give_room(guest, setting)
        service.domain_xml.limit_bits(guest, self._roots, self._libvirt_version())
        places = {} if tree is None else service.guest_tree.places(guest, tree)
        return described(cards, places, self._roots)

    def clean(self, grant: Grant) -> bool:
        assert isinstance(grant, GPU)
        self.bindings.give_to_guests(grant)
        nova_gpu.privsep.cleaning.reset(str(grant.address))
        return True


def _cards(grants: Iterable[Grant]) -> list[GPU]:
    return [grant for grant in grants if isinstance(grant, GPU)]
