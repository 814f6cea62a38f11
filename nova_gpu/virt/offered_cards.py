# SPDX-License-Identifier: Apache-2.0
"""The inspection of a host's cards: which of them instances can get, and why not the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from oslo_log import log as logging

from nova_gpu.core import device, exception, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.unavailability import Reasons, Source, Unavailable
from nova_gpu.virt.card_gates import HostCards
from nova_gpu.virt.health.monitor import Watch
from nova_gpu.virt.health.xids import Xids
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

UNREAD = Unavailable(
    "instances may have vGPUs of it, and nova-compute could not read Nova's database yet",
    "",
    Source.SERVICE,
)
UNSEEN = Unavailable(
    "nova-compute failed to read this host's GPUs", "see nova-compute's log", Source.SERVICE
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cards:
    """The inspection of one host's cards, whole and divided."""

    discovery: Discovery
    watch: Watch
    card_inventory: CardInventory
    vgpus: VGPUs
    proofs: Proofs
    releases: Releases
    reporter: Reporter
    xids: Xids

    def look(self) -> Callable[[], None] | None:
        """Read the host's cards, and decide which of them new instances can get.

        Return a function that reports changes in the log and by notifications. Call it after the
        ledger has read which instances have the cards. Return ``None`` if the host's cards cannot
        be read.
        """
        self.card_inventory.begin_look()
        try:
            gpus = self.discovery.find()
        except exception.DiscoveryFailed as error:
            LOG.error("%s. nova-compute goes on with the GPUs' last known state.", error)
            return None
        given_whole = self.card_inventory.given_whole()
        divided = self.vgpus.cards.read(gpus, given_whole, self.vgpus.vgpu_inventory.held_slots())
        # Done here, outside the lock of a claim, because it may be slow.
        whole = [gpu for gpu in gpus if gpu.address not in divided]
        may_go = [gpu for gpu in whole if gpu.address not in given_whole]
        linked = self.discovery.joined_cards.beside_parts(may_go, divided.keys())
        of_cards = unavailability.merge(
            self.discovery.quarantined(gpus),
            self.releases.unavailable(),
            self.watch.look(gpus),
            self.vgpus.division.unprepared,
            self.discovery.kept_back(gpus),
        )
        self.discovery.tell_observers(of_cards)
        self.xids.forget(gpus)
        self.vgpus.cards.judge(of_cards)
        unavailable = unavailability.merge(
            of_cards,
            discovery.of_all(Source.DIVISION, linked),
            self.discovery.unavailable(whole, given_whole),
            divided,
            self.discovery.divided_since(gpu for gpu in whole if gpu.address in given_whole),
        )
        # Before any of these cards is offered
        shared = self.vgpus.shared_with_containers()
        refused = {a for a, own in unavailable.items() if unavailability.of_host(own)}
        self.proofs.judge((gpu for gpu in whole if gpu.address not in refused), shared)
        self.card_inventory.take_in(gpus, self.discovery.delivery.mode, unavailable)
        others = [gpu for gpu in gpus if not self.vgpus.cards.look.has(gpu.address)]
        return lambda: self.reporter.report(
            others, unavailable, self.card_inventory.groups(), self.card_inventory.owners()
        )

    def note_faults(self) -> None:
        """Withhold cards and vGPUs with a fatal Xid in the kernel's log or repeated failed starts.

        An Xid is an error that NVIDIA's driver reports. Instances keep what they have.
        """
        cards = (*self.card_inventory.cards(), *self.vgpus.containers_cards())
        self.xids.look(cards, self.releases.quarantine_fault)
        self.vgpus.keep_failed()
        faulty = self.xids.unavailable(self.vgpus.cards.look.cards.values())
        self.vgpus.cards.reserve_parts(Source.XID, faulty)

    def step_gates(self, ledger: Ledger) -> None:
        """Let extensions go on with what they do with idle cards before new instances get them."""
        if not self.discovery.gates:
            return
        host = self._host_cards(ledger)
        for gate in self.discovery.gates:
            further = gate.step(host, ledger)
            self.card_inventory.reserve(further)
            self.vgpus.cards.reserve(further)

    def _host_cards(self, ledger: Ledger) -> HostCards:
        shared, reasons = self.vgpus.cards.look.cards, self._reasons()
        cards = {card.address: card for card in self.card_inventory.cards()}
        cards |= {address: card.gpu for address, card in shared.items()}
        now = ledger.now
        held, dirty = (
            {a for item in used if (a := device.card_of(device.function(item), cards))}
            for used in (now.taken() | now.counted() | now.started(), now.used)
        )
        board = frozenset(self.discovery.deliveries.sets.modules)
        joined = {**dict.fromkeys(board, board), **self.discovery.joined_cards.joined()}
        return HostCards(cards, reasons, held, dirty, shared.keys(), joined)

    def faulty(self, devices: Collection[Device]) -> frozenset[Device]:
        """Return those of *devices* whose cards are broken or in quarantine."""
        cards = {
            address
            for address, own in self._reasons().items()
            if any(reason.is_fault or reason.source is Source.QUARANTINE for reason in own)
        }
        known = {*cards, *(card.address for card in self.card_inventory.cards())}
        known |= self.vgpus.cards.look.cards.keys()
        return frozenset(
            item for item in devices if device.card_of(device.function(item), known) in cards
        )

    def _reasons(self) -> dict[PciAddress, Reasons]:
        """Return the reasons against each card, whole or divided."""
        reasons = {
            address: own
            for group in self.card_inventory.groups().values()
            for address, own in group.unavailable.items()
        }
        shared = self.vgpus.cards.look.cards
        return reasons | {address: card.reasons for address, card in shared.items()}

    def withhold(self) -> None:
        """Offer no card and no vGPU to new instances until :meth:`look` succeeds."""
        self._reserve_whole(UNSEEN)
        self.vgpus.cards.reserve(dict.fromkeys(self.vgpus.cards.look.cards, (UNSEEN,)))

    def withhold_whole(self) -> None:
        """Offer no whole card until Nova's database was read: instances may have vGPUs of it."""
        self._reserve_whole(UNREAD)

    def _reserve_whole(self, reason: Unavailable) -> None:
        self.card_inventory.reserve(
            {card.address: (reason,) for card in self.card_inventory.cards()}
        )
