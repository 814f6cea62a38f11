# SPDX-License-Identifier: Apache-2.0
"""The proofs of one host that devices are clean, and what follows where one is missing."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Collection, Iterable, Mapping

from oslo_log import log as logging

from nova_gpu.core import device as devices
from nova_gpu.core import exception
from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.pci import identity
from nova_gpu.host.pci.identity import Identity
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import proofs
from nova_gpu.host.state.quarantine import Identities
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)


class Proofs:
    """A device without a proof is dirty: it is cleaned before an instance gets it."""

    def __init__(
        self, folder: pathlib.Path, roots: Roots, identities: Identities, ledger: Ledger
    ) -> None:
        self._folder = folder
        self._roots = roots
        self._identities = identities
        self._ledger = ledger
        self._lock = threading.Lock()
        # The devices that were here at the last look, and so are judged; each with its card's
        # product and what tells that from others.
        self._judged: Mapping[Device, tuple[str, Identity]] = {}
        # Why a device that is clean, or may be, has no proof.
        self._unproven: dict[Device, Unavailable] = {}
        # Cleaned devices whose proof could not be written, with their cards, how, and after whom.
        self._unwritten: dict[Device, tuple[GPU, str, str | None]] = {}

    def judge(self, cards: Iterable[GPU], shared: Iterable[SharedCard]) -> None:
        """Take what is here for the first time, and has no proof, for dirty.

        :param cards: the cards that are given whole
        :param shared: the cards of which containers get MIG instances
        """
        here: dict[Device, GPU] = {card.address: card for card in cards}
        for part in shared:
            for type_id in part.card.types:
                here.update(dict.fromkeys(vgpu_capacity.instances(part.card, type_id), part.gpu))
        identities = self._identities({card.address: card for card in here.values()}.values())
        before, new, judged = self._judged, [], {}
        for device, card in here.items():
            product, known = before.get(device, ("", {}))
            now = identities[card.address]
            if product != card.product.key or identity.same(known, now) is False:
                new.append(device)
                known = {}
            judged[device] = (card.product.key, {**known, **now})  # not all is read each time
        self._judged = judged
        cards_of_new = {here[device].address: here[device] for device in new}.values()
        seen = proofs.see(cards_of_new, self._roots, self._identities) if new else {}
        self._ledger.was_used(
            device
            for device in new
            if not proofs.holds(self._folder, device, here[device], seen.get(here[device].address))
        )

    def revoke(self, used: Collection[Device]) -> None:
        """Take the proofs of *used* away, because a guest is about to have them.

        :raises DeviceUnavailable: where one of them may still be there
        """
        for device in used:
            try:
                proofs.revoke(self._folder, [device], self._judged)
            except OSError as error:
                # Some of them may have none any more: they get new ones.
                self._ledger.was_used(used)
                raise exception.DeviceUnavailable(
                    str(device),
                    f"that a guest uses it cannot be noted: {error}",
                    f"have nova-compute write to {self._folder}",
                ) from error
        self._forget(used)

    def withdraw(self, card: GPU) -> None:
        """Take the proof of a card away that is not fit for a guest, as far as that can be done."""
        self._forget([card.address])
        try:
            proofs.revoke(self._folder, [card.address], self._judged)
        except OSError as error:
            LOG.error("Failed to remove the proof that GPU %s is clean: %s", card.address, error)

    def withdraw_used(self) -> None:
        """Take the proofs away of what guests have that were not started here.

        Another's domain, or one whose device nodes lead to another card now.
        """
        now = self._ledger.now
        used = now.used - now.cleaning
        self._ledger.was_used(devices.clashing(self._judged, used))
        try:
            proofs.revoke(self._folder, used, self._judged)
        except OSError as error:
            LOG.error("Failed to remove the proofs of GPUs that guests have: %s", error)

    def prove(self, device: Device, card: GPU, by: str, after: str | None) -> None:
        """Write down that *device*, which is *card* or a part of it, was cleaned.

        :param by: how
        :param after: the uuid of the instance that had it, where that is known
        :raises OSError: where it cannot be written; it is not offered until it is
        """
        with self._lock:
            self._unwritten[device] = (card, by, after)
        try:
            seen = proofs.see([card], self._roots, self._identities).get(card.address)
            if seen is None:
                raise OSError(proofs.UNTOLD)
            proofs.write(self._folder, device, card, seen, by, after)
        except OSError as error:
            remedy = f"have nova-compute write to {self._folder}"
            self.lacking(device, f"that it was cleaned cannot be noted: {error}", remedy)
            raise
        self._forget([device])

    def write_again(self) -> None:
        """Write the proofs that could not be written, and offer what has one then."""
        for device, known in tuple(self._unwritten.items()):
            with (
                contextlib.suppress(exception.DeviceUnavailable, OSError),
                self._ledger.clean(device),  # what a guest has got meanwhile has none
            ):
                self.prove(device, *known)
                self._ledger.cleaned(device)

    def covers(self, device: Device) -> bool:
        """Return whether *device* is here and needs a proof."""
        return device in self._judged

    def is_cleaned(self, device: Device) -> bool:
        """Return whether *device* was cleaned, and its proof is still to be written."""
        return device in self._unwritten

    def lacking(self, device: Device, reason: str, remedy: str, level: int = logging.ERROR) -> None:
        """Note why *device* has no proof, and so is not offered."""
        new = Unavailable(reason, remedy, Source.PROOF)
        with self._lock:
            known, self._unproven[device] = self._unproven.get(device), new
        if known != new:
            LOG.log(level, "GPU %s is not offered: %s", device, new)

    def unavailable(self) -> dict[PciAddress, Reasons]:
        """Return the whole cards that are not offered to new instances."""
        with self._lock:
            unproven = dict(self._unproven)
        return {card: (unproven[card],) for card in devices.cards(unproven)}

    def _forget(self, those: Collection[Device]) -> None:
        with self._lock:
            for device in those:
                self._unproven.pop(device, None)
                self._unwritten.pop(device, None)
