# SPDX-License-Identifier: Apache-2.0
"""Whole cards for guests of KVM and QEMU: their PCI functions, bound to VFIO."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, refusal_texts
from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import binding as host_binding
from nova_gpu.host.vfio import open_devices, passthrough
from nova_gpu.virt.delivery import guest_address_space, pci_aliases
from nova_gpu.virt.delivery.delivery import Grant, Operation, WholeCards, told_of_cards
from nova_gpu.virt.delivery.peer_access import Peers

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig

    from nova_gpu.core.flavor.request import FlavorRequest
    from nova_gpu.core.guest.devices import GuestDevice
    from nova_gpu.virt import threads
    from nova_gpu.virt.delivery import binding
    from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

# Of any guest of QEMU that has a PCI device, or a part of one
UNSAVED: Mapping[Operation, str] = MappingProxyType(
    {Operation.SUSPEND: refusal_texts.SUSPEND_GPUS, Operation.SNAPSHOT: refusal_texts.SNAPSHOT_GPUS}
)


class PCIPassthrough(WholeCards):
    """The delivery of whole cards on a KVM or QEMU host.

    :param unbound: the folder of :class:`nova_gpu.virt.delivery.bind_failures.BindFailures`
    :param ledger: who has what, where guests are given cards, as nova-compute alone does
    :param fabric: what joins the cards of a board with NVSwitches
    :param peers: what guests can be told of how their cards reach each other
    """

    mode = DeliveryMode.PCI
    shares_driver = False
    needs_hard_reboot = False
    share: threads.DaemonShare
    bindings: binding.Bindings
    refused: Mapping[Operation, str] = MappingProxyType(
        {**UNSAVED, Operation.LIVE_MIGRATION: refusal_texts.LIVE_CARDS}
    )

    def __init__(
        self,
        roots: Roots,
        device_spec: pci_aliases.DeviceSpec,
        unbound: pathlib.Path,
        ledger: Ledger | None,
        peers: Peers,
    ) -> None:
        self._roots = roots
        self._device_spec = device_spec
        self._holders: Mapping[str, str] = {}
        self._peers = peers
        if ledger is not None:
            # Only now: privsep takes half a second, and the commands give nobody a card.
            from nova_gpu.virt.delivery import binding

            self.bindings = binding.Bindings(roots, ledger, unbound)
            self.share = self.bindings.share

    # What the host has

    def obstacle(self, card: GPU) -> str | None:
        if CONF.libvirt.virt_type not in ("kvm", "qemu"):
            return f"[libvirt]virt_type = {CONF.libvirt.virt_type}; it must be kvm, qemu or lxc"
        try:
            reason = self._device_spec.obstacle(card, self._roots)
        except (OSError, ValueError) as error:
            return passthrough.unread(error)
        room = guest_address_space.of_host(self._roots)
        return reason or passthrough.obstacle(card, self._roots, room)

    def look(self, gpus: Collection[GPU]) -> None:
        self._peers.look_again()

    def reach_each_other(self, cards: Collection[GPU]) -> bool:
        return self._peers.obstacle(cards) is None

    def in_use(self, cards: Iterable[GPU]) -> Mapping[PciAddress, str]:
        """Return the *cards* that the host's own processes have open; the log says which.

        They could not be given, and no other instance is to be sent here for them. One that is with
        VFIO is open only to its guest.
        """
        hosts_own = [
            str(card.address) for card in cards if not passthrough.is_with_vfio(card, self._roots)
        ]
        if not hosts_own:
            return {}
        if not self._roots.shows_all_processes():
            reason = f"{open_devices.UNSEEN}; {open_devices.UNSEEN_REMEDY}"
            return {PciAddress.parse(address): reason for address in hosts_own}
        try:
            with boundary.crossed():
                devices = nova_gpu.privsep.vfio.in_use(hosts_own)
        except boundary.Failure as error:
            LOG.warning("Cannot tell whether a process has a GPU open: %s", error)
            return {}
        if devices != self._holders:
            for address, who in devices.items():
                LOG.warning("GPU %s is in use by %s", address, who)
        self._holders = devices
        return {PciAddress.parse(a): f"{host_binding.IN_USE}; end that first" for a in devices}

    def most_in_one_guest(self, cards: Collection[GPU]) -> int:
        return guest_address_space.most(cards, self._roots)

    def unfit(self, card: GPU) -> str | None:
        if passthrough.is_with_vfio(card, self._roots):
            return None
        return (
            f"it is bound to {card.driver or 'no driver'} and not to vfio-pci; see nova-gpu host "
            "check"
        )

    def refuse_flavor(self, instance: objects.Instance, request: FlavorRequest) -> None:
        """Refuse a flavor with which the guest could not start.

        :raises GuestUnfit: for the image's machine type
        :raises InvalidExtraSpec: for a word of the flavor
        """
        from nova.virt.libvirt import utils as libvirt_utils

        from nova_gpu.virt.delivery import guest_config

        request.check_guest_options()
        guest_config.refuse_machine_type(libvirt_utils.get_machine_type(instance.image_meta))

    # What is done

    def begin(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        cards = _cards(grants)
        if all(passthrough.is_with_vfio(card, self._roots) for card in cards):
            return
        # Nothing is taken from the host for a guest that cannot have it.
        self._refuse_unfit_guest(instance, request, cards)
        for card in cards:
            self.bindings.begin(card, instance.uuid)

    def make_ready(
        self, instance: objects.Instance, request: FlavorRequest, grants: Sequence[Grant]
    ) -> None:
        """Bind the cards, and refuse what libvirt would only notice when the guest is gone already.

        :raises GuestUnfit: for its machine type, or more memory of GPUs than it can map
        :raises InvalidExtraSpec: for a word of its flavor
        :raises BindingFailed, DeviceUnavailable: where a card cannot be bound, read or joined
        :raises BetterElsewhere: where the NVSwitches cannot join them, or its driver cannot be told
            that they reach each other
        """
        cards = _cards(grants)
        if not cards:
            return
        self._refuse_unfit_guest(instance, request, cards)
        for card in cards:
            self.bindings.end(card, instance.uuid)

    def _refuse_unfit_guest(
        self, instance: objects.Instance, request: FlavorRequest, cards: Sequence[GPU]
    ) -> None:
        from nova.virt.libvirt import utils as libvirt_utils

        from nova_gpu.virt.delivery import guest_tree

        self.refuse_flavor(instance, request)
        machine_type = libvirt_utils.get_machine_type(instance.image_meta)
        tree = guest_tree.of(instance, request, cards, machine_type, self._roots)
        guest_address_space.refuse(instance, request, cards, self._roots, tree=tree is not None)
        self._peers.cliques(instance, request, cards)

    def render(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        grants: Sequence[Grant],
    ) -> None:
        from nova_gpu.virt.delivery import guest_config, guest_tree

        if cards := _cards(grants):
            tree = guest_tree.of(instance, request, cards, guest.os_mach_type, self._roots)
            if tree is not None:
                guest_tree.add_cells(guest, tree, self._roots)
            cliques = self._peers.cliques(instance, request, cards)
            guest_config.add_cards(
                guest, cards, option_rom=request.option_rom, tree=tree, cliques=cliques
            )
            setting = guest_address_space.setting(
                instance,
                request,
                cards,
                self._roots,
                is_uefi=guest_config.has_uefi(guest),
                tree=tree is not None,
            )
            guest_config.give_room(guest, setting)

    def told(
        self,
        instance: objects.Instance,
        request: FlavorRequest,
        guest: vconfig.LibvirtConfigGuest,
        cards: Sequence[GPU],
    ) -> list[GuestDevice]:
        from nova_gpu.virt.delivery import guest_tree

        tree = guest_tree.of(instance, request, cards, guest.os_mach_type, self._roots)
        places = {} if tree is None else guest_tree.places(guest, tree)
        return told_of_cards(cards, places, self._roots)

    def clean(self, card: GPU) -> bool:
        self.bindings.give_to_guests(card)
        nova_gpu.privsep.cleaning.reset(str(card.address))
        return True


def _cards(grants: Iterable[Grant]) -> list[GPU]:
    return [grant for grant in grants if isinstance(grant, GPU)]
