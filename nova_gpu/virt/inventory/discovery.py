# SPDX-License-Identifier: Apache-2.0
"""The discovery of a host's cards: which the options select, and why some are not offered.

It also decides which cards are offered whole, and which in parts, as vGPUs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import boundary, device, exception, unavailability, vendors
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Scope, Source, Unavailable
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import FUNCTION_TYPE, DividedCard, Slot, is_function_type
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host import products
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import consoles, direct_links, discovery, identity, selection
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import quarantine
from nova_gpu.host.vgpu import gim, virtual_functions
from nova_gpu.virt import card_gates
from nova_gpu.virt.delivery.deliveries import Deliveries
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.delivery.open_cards import OpenCards
from nova_gpu.virt.inventory.joined_cards import JoinedCards

if TYPE_CHECKING:
    from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

_HELD = "instances have vGPUs of it, and its driver makes none now"
_HELD_REMEDY = (
    "have it divided again (its vendor's script, see the kernel's log), or move or delete those "
    "instances; one vGPU is"
)
_DIVIDED_SINCE = Unavailable(
    "it is in MIG mode, and was given whole before that",
    "turn that off (nvidia-smi -mig 0), or delete the instance, after which it is given in parts",
    Source.DIVISION,
)
_SHARING = (
    "compute instances that share the memory of their GPU instance are given to no new guest; make "
    "one compute instance in each GPU instance (nvidia-smi mig -cgi ... -C), or set "
    "[gpu]share_gpu_instances where all of their guests trust each other"
)


def providers_file() -> pathlib.Path:
    """Return the path of the file of :class:`nova_gpu.virt.inventory.provider_tree.Providers`."""
    return pathlib.Path(NOVAS.state_path, "gpu-providers")


class Discovery:
    """The reader of a host's cards; it reads the options once, and the host in each call.

    :raises InvalidOption: if the value of an option is invalid
    """

    def __init__(
        self,
        ledger: Ledger | None = None,
        libvirt_version: Callable[[], int | None] = lambda: None,
        qemu_version: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Read the options.

        :param ledger: ``None`` in the commands
        """
        self.quarantine = pathlib.Path(NOVAS.state_path, "gpu-quarantine")
        self.proofs = pathlib.Path(NOVAS.state_path, "gpu-clean")
        self.vgpus = pathlib.Path(NOVAS.state_path, "gpu-vgpus")
        self.divided = pathlib.Path(NOVAS.state_path, "gpu-divided")
        self.providers = providers_file()
        self.roots = Roots.of(CONF.gpu)
        self._selection = selection.Selection.parse(
            CONF.gpu.vendors, CONF.gpu.addresses, CONF.gpu.product_ids
        )
        self._overrides = products.parse_overrides(CONF.gpu.product)
        self._linked = direct_links.parse(CONF.gpu.link_groups)
        self.deliveries = Deliveries(self.roots, self.kept, ledger, libvirt_version, qemu_version)
        self.delivery = self.deliveries.whole
        self.libvirt_version = libvirt_version
        self._ledger = ledger
        self.joined_cards = JoinedCards(self.deliveries.sets, self.roots, serves=ledger is not None)
        self._open_cards = OpenCards(self.roots)
        self.gates = card_gates.load(self.roots, self.identities if ledger else None)
        self._nvml_facts: Mapping[PciAddress, nvml.NvmlFacts] = {}

    def find(self) -> tuple[GPU, ...]:
        """Return the host's cards that the options select.

        NVML is queried until it has answered once for every card of NVIDIA's driver. Its answers
        are cached, so that a group's traits do not change when NVML fails. While a card is in MIG
        mode, every call queries NVML, because the operator may divide the card anew. On a KVM host
        NVML is never queried: a process that has a card's device node open would prevent the card's
        binding to vfio-pci.

        :raises DiscoveryFailed: if sysfs cannot be read
        """
        gpus = self._discover()
        held = {gpu.address for gpu in gpus if gpu.driver == nvml.DRIVER}
        wanted = CONF.gpu.nvml and self.delivery.shares_driver
        if wanted and (
            held - self._nvml_facts.keys()
            or any(mig_layout.is_divided(gpu, self.roots) for gpu in gpus)
        ):
            self._nvml_facts = {**self._nvml_facts, **nvml.query(CONF.gpu.nvml_timeout)}
            gpus = self._discover()
        self.deliveries.sets.look(gpus)
        self.deliveries.look_again()
        if not self.delivery.shares_driver:
            usage = self._ledger.now if self._ledger else None
            had = usage.counted() | usage.used | usage.taken() if usage else ()
            self.joined_cards.look(gpus, {device.function(item) for item in had})
        return gpus

    def _discover(self) -> tuple[GPU, ...]:
        gpus = discovery.discover(
            self.roots, self._selection, self._overrides, lambda: self._nvml_facts
        )
        return direct_links.with_links(gpus, self._linked)

    def in_parts(
        self, cards: Iterable[GPU]
    ) -> tuple[dict[PciAddress, DividedCard], dict[PciAddress, Reasons]]:
        """Return the result of :func:`sorted_out` for a nova-compute that starts now, by card.

        It has reasons also against undivided cards of which instances have vGPUs by nova-gpu's
        records of made vGPUs.

        :raises OSError: if the kernel's list of mediated devices cannot be read
        """
        made, gpus = MadeVGPUs(self.vgpus), {gpu.address: gpu for gpu in cards}
        divided = self.deliveries.divided(gpus.values(), made.recorded_types())
        shared, others = sorted_out(gpus, divided, self.deliveries)
        parts = {address: card.card for address, card in shared.items()}
        own = {address: card.reasons for address, card in shared.items() if card.reasons}
        return parts, {**own, **held_in_parts(gpus, parts, made.instances()), **others}

    def divided_since(self, given_whole: Iterable[GPU]) -> dict[PciAddress, Reasons]:
        """Return a reason against each card that an instance has whole and that is in MIG mode now.

        On a KVM host the result is empty: a KVM guest may itself set the MIG mode of its card.
        """
        if not self.delivery.shares_driver:
            return {}
        cards = (gpu for gpu in given_whole if mig_layout.is_divided(gpu, self.roots))
        return {gpu.address: (_DIVIDED_SINCE,) for gpu in cards}

    def unavailable(
        self, cards: Iterable[GPU], given_whole: Collection[PciAddress] = ()
    ) -> dict[PciAddress, Reasons]:
        """Return the reasons why *cards* cannot be offered whole, by card.

        The reasons are those of :meth:`of_card`, and on a KVM host also that a process of the host
        has the card open. This may be slow: it reads many files for every card.

        :param given_whole: the cards that instances have; a reason of the board keeps these cards
            from new instances only
        """
        gpus = tuple(cards)
        reasons = unavailability.merge(
            {gpu.address: self.of_card(gpu, is_given=gpu.address in given_whole) for gpu in gpus}
        )
        if self.delivery.shares_driver:
            return reasons
        in_use = self._open_cards.reasons(gpu for gpu in gpus if gpu.address not in reasons)
        return {**reasons, **of_all(Source.IN_USE, in_use)}

    def of_card(self, gpu: GPU, *, is_given: bool = False) -> Reasons:
        """Return the reasons of the host, its options or the card's board against offering *gpu*.

        The board is one with exact sets of cards. Quarantine and health are checked elsewhere, open
        device nodes in :meth:`unavailable`.

        :param is_given: whether an instance has the card; a reason of its board then keeps the card
            from new instances only
        """
        of_sets = Scope.NEW if is_given else Scope.ALL
        reasons = (
            (self.delivery.obstacle(gpu), Source.HOST, Scope.ALL),
            (self.deliveries.sets.why_not(gpu), Source.SETS, of_sets),
        )
        return tuple(
            Unavailable(text, "", source, scope) for text, source, scope in reasons if text
        )

    def kept(self, gpu: GPU) -> str | None:
        """Return why *gpu* is not offered if the host booted with it as its display.

        A card that ``[gpu]addresses`` or ``[gpu]product_ids`` names is offered nevertheless.
        """
        is_named = self._selection.names(gpu.address, gpu.product)
        if is_named or not consoles.is_boot_display(gpu.functions, self.roots):
            return None
        return (
            "it is the display the host booted on; name it in [gpu]addresses if instances are to "
            "get it nevertheless"
        )

    def quarantined(self, gpus: Iterable[GPU]) -> dict[PciAddress, Reasons]:
        return quarantine.unavailable(self.quarantine, gpus, self.roots, self.identities)

    def kept_back(self, gpus: Collection[GPU]) -> dict[PciAddress, Reasons]:
        """Return why extensions keep cards from new instances, by address."""
        return unavailability.merge(*(gate.kept_back(gpus) for gate in self.gates))

    def tell_observers(self, reasons: Mapping[PciAddress, Reasons]) -> None:
        for gate in self.gates:
            if isinstance(gate, card_gates.Observer):
                gate.saw(reasons)

    def identities(self, gpus: Iterable[GPU]) -> Mapping[PciAddress, identity.Identity]:
        """Return the facts that identify each card, such as its serial number, by address.

        If privsep fails, only the facts that nova-compute can read without root are returned.
        """
        own = {card.address: identity.read(card, self.roots) for card in gpus}
        try:
            with boundary.crossed():
                more = nova_gpu.privsep.readings.serial_numbers([str(address) for address in own])
        except boundary.Failure as error:
            LOG.warning(
                "Cannot read the serial numbers of GPUs, will identify cards without them: %s",
                error,
            )
            more = {}
        return {address: {**more.get(str(address), {}), **own[address]} for address in own}


def of_all(source: Source, texts: Mapping[PciAddress, str]) -> dict[PciAddress, Reasons]:
    """Return *texts* as reasons of *source* that apply to all instances, not only new ones."""
    return {card: (Unavailable(text, "", source, Scope.ALL),) for card, text in texts.items()}


def sorted_out(
    gpus: Mapping[PciAddress, GPU],
    divided: Mapping[PciAddress, DividedCard],
    deliveries: Deliveries,
) -> tuple[dict[PciAddress, SharedCard], dict[PciAddress, Reasons]]:
    """Return the cards to offer as vGPUs, and why other cards are not offered at all.

    A card in neither result can be offered whole.

    :param divided: those of *gpus* that are divided into vGPUs or MIG instances, or can be
    """
    cards: dict[PciAddress, SharedCard] = {}
    others: dict[PciAddress, str] = {}
    for address, card in divided.items():
        unfit = deliveries.sets.look_at_parts(gpus[address], card)
        if reason := card.unread or _novas_own(card) or deliveries.ignored(gpus[address]):
            others[address] = reason
        elif part := selected(card, unfit):
            for reasons_by_card in unfit.values():
                _report(address, reasons_by_card)
            if card.sharing:
                _report(address, _SHARING)
            if part.is_plain and (
                text := virtual_functions.unlimited(address, len(part.parents), deliveries.roots)
            ):
                _warn(address, text)
            if reason := deliveries.obstacle(gpus[address], part):
                others[address] = reason
            else:
                types = frozenset(deliveries.sets.withheld(gpus[address], part))
                unavailable = deliveries.part_obstacles(gpus[address], part)
                for text in unavailable.values():
                    _report(address, text)
                withheld: dict[device.Device, Reasons] = {
                    slot: (Unavailable(text, "", Source.HOST),)
                    for slot, text in unavailable.items()
                }
                if reason := _undeclared(gpus[address], part, gpus.values(), deliveries.roots):
                    withheld[address] = (Unavailable(reason, "", Source.DIVISION),)
                joined = reached(gpus[address], part, deliveries.roots)
                if CONF.gpu.split_link_groups:
                    joined = frozenset()
                cards[address] = SharedCard(gpus[address], part, withheld, types, joined)
        elif unfit and (whole := selected(card)):
            others[address] = unfit[min(whole.types)]
        elif card.has_instances:
            others[address] = (
                "it is divided into MIG instances, of types that [gpu]vgpu_types does not name; "
                "name their type, or turn MIG mode off (nvidia-smi -mig 0)"
            )
        elif any(parent.made for parent in card.parents.values()):
            others[address] = (
                "it has vGPUs of types that [gpu]vgpu_types does not name; remove those, or name "
                "their type"
            )
        elif not card.types and any(p.kind.hides_types for p in card.parents.values()):
            # The removal of the functions would undo the first step of who prepares it for vGPUs.
            vendor = vendors.of(gpus[address].product.vendor_id)
            how = vendor.how_to_remove_functions(address)
            others[address] = (
                "its driver lists no vGPU type for its virtual functions; in MIG mode make GPU "
                f"instances (nvidia-smi mig -cgi ... -C), or to have it given whole, {how}"
            )
    for address in gpus.keys() - cards.keys() - others.keys():
        gpu = gpus[address]
        if (
            reason := deliveries.ignored(gpu)
            or deliveries.undivided(gpu)
            or _novas_to_divide(address, gpus)
        ):
            others[address] = reason
    return cards, of_all(Source.DIVISION, others)


def _undeclared(gpu: GPU, card: DividedCard, gpus: Iterable[GPU], roots: Roots) -> str | None:
    """Return why new guests cannot get the functions of a card that may share its memory."""
    if CONF.gpu.split_link_groups or not card.is_plain:
        return None
    return gim.undeclared(gpu, len(card.parents), gpus, roots)


def reached(gpu: GPU, card: DividedCard, roots: Roots) -> frozenset[PciAddress]:
    """Return the cards whose memory the parts of *card* may reach, empty if only its own.

    NVIDIA's driver on the host separates its vGPUs, whatever links join their cards.
    """
    if not (gpu.links and card.is_plain) or gim.is_alone(gpu, len(card.parents), roots):
        return frozenset()
    return frozenset({gpu.address, *(link.peer for link in gpu.links)})


def held_in_parts(
    cards: Collection[PciAddress], divided: Collection[PciAddress], held: Collection[Slot]
) -> dict[PciAddress, Reasons]:
    """Return why undivided *cards* of which instances have vGPUs are not offered at all, by card.

    :param divided: those of *cards* that are divided now, which are not in the result
    """
    slots = {device.card_of(slot.parent, cards): slot for slot in sorted(held, reverse=True)}
    return {
        card: (Unavailable(_HELD, f"{_HELD_REMEDY} {slot}", Source.DIVISION, Scope.ALL),)
        for card, slot in slots.items()
        if card is not None and card not in divided
    }


def selected(card: DividedCard, unfit: Collection[str] = ()) -> DividedCard | None:
    """Return *card* with only the vGPU types that [gpu]vgpu_types names, without *unfit* ones.

    ``vf`` names all functions without types, however they are divided. Return ``None`` if no type
    remains. How many vGPUs of a type an empty card carries is computed
    here, because it may follow from the types that are dropped.
    """
    patterns = CONF.gpu.vgpu_types
    types = {
        type_id: dataclasses.replace(facts, per_card=vgpu_capacity.carried(card, type_id))
        for type_id, facts in card.types.items()
        if type_id not in unfit
        and any(
            fnmatch.fnmatchcase(n, pattern)
            for n in (type_id, facts.name or "", FUNCTION_TYPE * is_function_type(type_id))
            for pattern in patterns
        )
    }
    return dataclasses.replace(card, types=types) if types else None


def is_divided_by_nova(function: PciAddress) -> bool:
    """Return whether the options let Nova's own driver make vGPUs at *function*."""
    return any(not places or str(function) in places for _, places in _novas_types())


def _novas_own(card: DividedCard) -> str | None:
    """Return which option makes Nova's own driver divide *card* into vGPUs, and the remedy."""
    mediating = {str(a) for a, parent in card.parents.items() if parent.kind.is_mediated}
    for type_id, addresses in _novas_types():
        if type_id in card.types and (mediating & {*addresses} if addresses else mediating):
            return (
                f"[devices]enabled_mdev_types names its type {type_id}, so that Nova itself "
                "divides it; take that out to have it offered"
            )
    return None


def _novas_to_divide(card: PciAddress, cards: Collection[PciAddress]) -> str | None:
    """Return the option by which Nova's own driver divides a card without types, and the remedy."""
    for type_id, addresses in _novas_types():
        for address in addresses:
            with contextlib.suppress(exception.InvalidPciAddress):
                if device.card_of(PciAddress.parse(address), cards) == card:
                    return (
                        f"[mdev_{type_id}]device_addresses names {address}, so that Nova itself "
                        "divides it; take that out to have it offered"
                    )
    return None


def _novas_types() -> Iterator[tuple[str, Collection[str]]]:
    """Yield the vGPU types that Nova's own driver makes, each with the addresses for it, if any."""
    for type_id in NOVAS.devices.enabled_mdev_types:
        section = getattr(CONF, f"mdev_{type_id}", None)
        yield type_id, section.device_addresses if section else ()


@functools.cache
def _report(address: PciAddress, reason: str) -> None:
    """Log, once for each *reason*, why some vGPUs of the card are not offered."""
    LOG.warning("Some vGPUs of GPU %s are not offered: %s", address, reason)


@functools.cache
def _warn(address: PciAddress, text: str) -> None:
    LOG.warning("GPU %s: %s", address, text)
