# SPDX-License-Identifier: Apache-2.0
"""Messages between the two hosts of a live migration about a guest's vGPUs, and common steps.

Nova's resource tracker claims at the destination of one as it does for any other move, but only
where both drivers say that they look at the claim; Nova's own does for instances with a NUMA
topology. So what the instance has is in ``old_resources`` of its migration context, and what it
will have in ``new_resources``. The rest is in fields of Nova's ``LibvirtLiveMigrateData``:

``target_mdevs``: there, and empty, it says that the destination's driver is this one. Then it is
Nova's map of mediated devices, and in all releases it makes Nova clean up at both ends.

``source_mdev_types``: what the guest has, in words that the destination compares with its own::

    nvidia-1155 of 10de:26b9, a virtual function with a type; driver 550.54.16; ECC 1

What stands behind the first semicolon an older release does not say, and then nothing is known of
it. Source of what must be alike: of ECC, NVIDIA's vGPU user guide, "Migrating a VM Configured with
vGPU"; of the version, Red Hat's guide to live migration with an NVIDIA vGPU: it fails on KVM hosts
where that differs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.refusal_texts import COLD_REMEDY
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.host import products
from nova_gpu.host.nvidia import nvml, proc
from nova_gpu.host.roots import Roots
from nova_gpu.virt import sets as exact_sets
from nova_gpu.virt.delivery.hostdev_parts import HostdevParts
from nova_gpu.virt.inventory.assignment import Assigned
from nova_gpu.virt.inventory.published import Holding
from nova_gpu.virt.lifecycle import refusals
from nova_gpu.virt.lifecycle.starts import Starts
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.sets import Sets

LOG = logging.getLogger(__name__)

Held = Collection[Holding[VGPUGroup, Slot]]
_MODES = {"0": "off", "1": "on"}
_FACTS = re.compile(r"; driver ([0-9.]+)|; ECC ([01])")


def recorded(resources: Iterable[objects.Resource] | None) -> list[Slot]:
    """Return the vGPUs among *resources*, of whatever host, those of one type together."""
    recordings = (
        Slot.parse(resource.identifier)
        for resource in resources or ()
        if resource.resource_class == names.VGPU_RESOURCE_CLASS
    )
    return sorted(recordings, key=lambda slot: (slot.type_id, slot))


def pairs(instance: objects.Instance) -> list[tuple[Slot, Slot]]:
    """Return what the instance has at the source, each with what it will have in its place."""
    moving = instance.migration_context
    old, new = recorded(moving.old_resources), recorded(moving.new_resources)
    return list(zip(old, new, strict=True))


def refused(reason: str) -> nova_exception.MigrationPreCheckError:
    """Return the refusal of a live migration; it says what to do instead.

    Of a destination that says so the conductor tries another.
    """
    error = nova_exception.MigrationPreCheckError(reason=f"{reason}; {COLD_REMEDY}")
    return refusals.expected(error)


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """The parts that both ends of a move have of their host."""

    assigned: Assigned
    starts: Starts
    vgpus: VGPUs
    sets: Sets
    roots: Roots
    nodename: Callable[[], str]

    def are_moved(self, instance: objects.Instance) -> bool:
        """Return whether the instance has vGPUs of this host, or will have."""
        return bool(self.vgpus) and bool(recorded(instance.resources))

    def movable(self, slot: Slot) -> HostdevParts:
        """Return the way of the part at *slot*, which a guest is moved with as it runs.

        :raises NotImplementedError: for a container's, which is refused before
        """
        way = self.vgpus.way(slot)
        if not isinstance(way, HostdevParts):
            raise NotImplementedError
        return way

    def unmovable(self, slot: Slot) -> str | None:
        """Return why a guest with *slot* is not moved as it runs, by what joins its cards."""
        cards = (
            card.gpu.address for card in self.vgpus.cards.look.cards.values() if card.has(slot)
        )
        card = next(cards, None)
        return None if card is None else exact_sets.unmovable(self.sets, card, slot)

    def described(self, holdings: Held) -> dict[Slot, str]:
        """Return what each is: only of one that is the same can another take the state."""
        cards = {
            holding.device: card.gpu
            for holding in holdings
            if (card := holding.group.card_of(holding.device)) is not None
        }
        facts = facts_of({gpu.address: gpu for gpu in cards.values()}.values(), self.roots)
        return {
            holding.device: self._words(holding) + facts.get(cards[holding.device].address, "")
            if holding.device in cards
            else self._words(holding)
            for holding in holdings
        }

    def _words(self, holding: Holding[VGPUGroup, Slot]) -> str:
        way = self.vgpus.way(holding.device)
        return f"{holding.device.type_id} of {holding.group.product.key}, {way.words}"

    def stays(self, instance: objects.Instance) -> None:
        """Keep the vGPUs of a guest that stays here: its domain names them from now on."""
        if not self.vgpus:
            return
        moving = instance.migration_context
        resources = [*(instance.resources or ()), *((moving and moving.new_resources) or ())]
        if not (here := self.assigned.parts.devices(resources)):
            return
        # Which this service may not know: it can be another one than that which made them.
        self.vgpus.keep(instance.uuid, here)
        try:
            with self.starts.holding(instance.uuid, frozenset()):
                pass
        except exception.GuestError as error:
            LOG.error("Cannot tell which vGPUs it has: %s", error, instance=instance)

    def refuse_too_old(self, instance: objects.Instance, *, is_able: bool) -> None:
        """Refuse hosts that cannot move a guest with vGPUs.

        :param is_able: as Nova judges this host, by the versions of its libvirt and QEMU
        :raises nova.exception.MigrationPreCheckError: where it cannot move a guest with vGPUs
        """
        if not is_able and self.are_moved(instance):
            libvirt = libvirt_utils.version_to_string(
                libvirt_driver.MIN_MDEV_LIVEMIG_LIBVIRT_VERSION
            )
            qemu = libvirt_utils.version_to_string(libvirt_driver.MIN_MDEV_LIVEMIG_QEMU_VERSION)
            raise refused(
                f"host {self.nodename()} cannot move a running guest with vGPUs, which takes "
                f"libvirt {libvirt} and QEMU {qemu} at both ends"
            )


def facts_of(cards: Iterable[GPU], roots: Roots) -> Mapping[PciAddress, str]:
    """Return what is reported of the driver and of each of *cards*, for NVIDIA's only."""
    addresses = [card.address for card in cards if card.product.vendor_id == products.NVIDIA]
    if not addresses:
        return {}
    modes = nvml.modes(addresses, CONF.gpu.nvml_timeout) if CONF.gpu.nvml else {}
    driver = proc.version(roots)
    facts = {}
    for address in addresses:
        ecc = modes[address].ecc if address in modes else None
        facts[address] = f"; driver {driver}" if driver else ""
        facts[address] += "" if ecc is None else f"; ECC {ecc}"
    return facts


def not_alike(has: str | None, gets: str) -> str | None:
    """Return why a guest that *has* the one cannot be given the other.

    ``None`` where nothing is known against it.
    """
    mine, its = (_FACTS.sub("", text or "") for text in (has, gets))
    if has is None or mine != its:
        return f"the guest has {has and mine}, and would get {its}"
    mine_driver, mine_ecc = _read_facts(has)
    its_driver, its_ecc = _read_facts(gets)
    if mine_ecc and its_ecc and mine_ecc != its_ecc:
        return (
            f"its card has ECC {_MODES[mine_ecc]}, and the one that it would get has it "
            f"{_MODES[its_ecc]}; both must be alike (nvidia-smi -e)"
        )
    if mine_driver and its_driver and mine_driver != its_driver:
        return (
            f"its vGPU manager is {mine_driver}, and the one there is {its_driver}, which takes no "
            "state of another version"
        )
    return None


def _read_facts(words: str) -> tuple[str | None, str | None]:
    """Return the driver's version and the ECC mode, as far as they are said."""
    matches = [match.groups() for match in _FACTS.finditer(words)]
    return (
        next((driver for driver, _ in matches if driver), None),
        next((ecc for _, ecc in matches if ecc), None),
    )
