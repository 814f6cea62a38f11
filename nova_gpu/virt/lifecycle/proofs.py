# SPDX-License-Identifier: Apache-2.0
"""Proofs that a host's devices are clean: files written after a cleaning, valid for one host boot.

A device without a valid proof is cleaned before it is offered to new instances.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Collection, Iterable, Mapping

from oslo_log import log as logging

from nova_gpu.core import device as devices
from nova_gpu.core import exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source, Unavailable
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.pci import identity
from nova_gpu.host.pci.identity import Identity
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import proofs
from nova_gpu.host.state.quarantine import Identities
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)


class Proofs:
    """The proofs of one host's whole cards and MIG instances.

    Other parts of cards need no proof, because they are made for each guest.
    """

    def __init__(
        self, folder: pathlib.Path, roots: Roots, identities: Identities, ledger: Ledger
    ) -> None:
        self._folder = folder
        self._roots = roots
        self._identities = identities
        self._ledger = ledger
        self._lock = threading.Lock()
        # The devices that :meth:`judge` last saw, each with its card's product and division and
        # the card's identifiers
        self._judged: Mapping[Device, tuple[tuple[str, list[str]], Identity]] = {}
        # Why a device has no proof, by device.
        self._unproven: dict[Device, Unavailable] = {}
        # Cleaned devices whose proof could not be written, each with its card, the method of the
        # cleaning, and the uuid of its last instance.
        self._unwritten: dict[Device, tuple[GPU, str, str | None]] = {}
        self._is_distrusted = False

    def distrust(self) -> None:
        """Count the devices of the first :meth:`judge` as not clean, whatever their proofs say."""
        self._is_distrusted = True

    def judge(self, cards: Iterable[GPU], shared: Iterable[SharedCard]) -> None:
        """Mark those devices as dirty that have no valid proof and were not here in the last call.

        MIG instances of a card that was divided anew count as not here before: they may have the
        ids of former ones, and the memory of others.

        :param cards: the cards that guests get whole
        :param shared: the cards that containers share as MIG instances
        """
        here: dict[Device, GPU] = {card.address: card for card in cards}
        for part in shared:
            # While NVML reports no division of the card, it may change unseen.
            for type_id in part.card.types if part.gpu.mig is not None else ():
                here.update(dict.fromkeys(vgpu_capacity.instances(part.card, type_id), part.gpu))
        identities = self._identities({card.address: card for card in here.values()}.values())
        before, new, judged = self._judged, [], {}
        for device, card in here.items():
            earlier, known = before.get(device, (None, {}))
            now, kind = identities[card.address], (card.product.key, proofs.division(card))
            if kind != earlier or identity.same(known, now) is False:
                new.append(device)
                known = {}
            judged[device] = (kind, {**known, **now})  # a look may miss identifiers
        cards_of_new = {here[device].address: here[device] for device in new}.values()
        seen = proofs.see(cards_of_new, self._roots, self._identities) if new else {}
        dirty = [
            device
            for device in new
            if self._is_distrusted
            or not proofs.holds(self._folder, device, here[device], seen.get(here[device].address))
        ]
        self._is_distrusted = False
        self._ledger.was_used(dirty)
        self._judged = judged  # only now: a start takes a judged device for clean or marked
        stale = devices.slots([*dirty, *(before.keys() - here.keys())])
        if stale:
            self._revoke(stale)
            self._forget(stale)

    def refuse_unjudged(self, new: Collection[Device]) -> None:
        """Refuse MIG instances that an instance gets newly, unless they are known to be clean.

        A card may have been divided anew since :meth:`judge` saw it; its MIG instances have the
        memory of former ones, and may have their ids. The next period judges them. Other profiles
        under the same ids are not noticed here, because only NVML has the profiles.

        :param new: devices that no guest of the instance had before
        :raises DeviceUnavailable: with the first of *new* that is refused
        """
        for slot in sorted(devices.slots(new), key=str):
            instances = gpu_instances.of_card(slot.parent, self._roots)
            (_, division), _ = self._judged.get(slot, (("", []), {}))
            ids = {line.partition(" ")[0] for line in division}
            if instances and ids != {instance.index for instance in instances}:
                raise exception.DeviceUnavailable(
                    str(slot),
                    "its card was divided into other MIG instances, which may not be clean",
                    "try again after nova-compute's next period",
                )
            if instances and slot in self._ledger.now.used:
                raise exception.DeviceUnavailable(
                    str(slot), "it is not clean", "try again after nova-compute's next period"
                )

    def revoke(self, used: Collection[Device]) -> None:
        """Mark *used*, devices that a guest is about to get, as dirty, and remove their proofs.

        :raises DeviceUnavailable: if a proof cannot be removed
        """
        self._forget(used)
        # First: where a proof cannot be removed, others may be gone, and all devices are cleaned.
        self._ledger.was_used(used)
        for device in used:
            try:
                proofs.revoke(self._folder, [device], self._judged)
            except OSError as error:
                raise exception.DeviceUnavailable(
                    str(device),
                    f"the proof that it is clean cannot be removed: {error}",
                    f"make {self._folder} writable for nova-compute",
                ) from error

    def withdraw(self, card: GPU) -> None:
        """Remove the proof that *card* is clean, as it goes into quarantine; log a failure."""
        self._forget([card.address])
        self._revoke([card.address])

    def withdraw_used(self) -> None:
        """Remove the proofs of all devices that guests have or had without a cleaning since.

        A start by this service has already removed them. The call is for other guests: domains of
        other programs, and containers whose device nodes lead to another card now. If a proof
        cannot be removed, log an error.
        """
        now = self._ledger.now
        used = now.used - now.cleaning
        self._ledger.was_used(devices.clashing(self._judged, used))
        self._revoke(used)

    def _revoke(self, those: Collection[Device]) -> None:
        """Remove the proofs of *those*, which are not clean; if that fails, log an error."""
        try:
            proofs.revoke(self._folder, those, self._judged)
        except OSError as error:
            LOG.error(
                "Failed to remove the proofs of GPUs that are not clean; if nova-compute restarts, "
                "it may offer these without a cleaning: %s",
                error,
            )

    def prove(self, device: Device, card: GPU, by: str, after: str | None) -> None:
        """Write the proof that *device*, which is *card* or a part of it, was cleaned.

        :param by: how it was cleaned, as :func:`nova_gpu.virt.lifecycle.cleaning.words` returns it
        :param after: the uuid of the instance that had the device, if known
        :raises OSError: if the proof cannot be written; until it is, the device is not offered
        """
        with self._lock:
            self._unwritten[device] = (card, by, after)
        try:
            seen = proofs.see([card], self._roots, self._identities).get(card.address)
            if seen is None:
                raise OSError(proofs.UNTOLD)
            proofs.write(self._folder, device, card, seen, by, after)
        except OSError as error:
            remedy = f"make {self._folder} writable for nova-compute"
            self.lacking(device, f"the proof that it is clean cannot be written: {error}", remedy)
            raise
        self._forget([device])

    def write_again(self) -> None:
        """Write the proofs that :meth:`prove` could not write, unless a guest has the device now.

        A device that gets its proof counts as clean.
        """
        for device, known in tuple(self._unwritten.items()):
            with (
                contextlib.suppress(exception.DeviceUnavailable, OSError),
                self._ledger.clean(device),  # fails if a guest got it meanwhile
            ):
                self.prove(device, *known)
                self._ledger.cleaned(device)

    def covers(self, device: Device) -> bool:
        """Return whether *device* is a whole card or a MIG instance that :meth:`judge` last saw."""
        return device in self._judged

    def is_cleaned(self, device: Device) -> bool:
        """Return whether *device* was cleaned and its proof could not be written yet."""
        return device in self._unwritten

    def lacking(self, device: Device, reason: str, remedy: str, level: int = logging.ERROR) -> None:
        """Set the reason why *device* has no proof, for :meth:`unavailable`; log a new reason."""
        new = Unavailable(reason, remedy, Source.PROOF)
        with self._lock:
            known, self._unproven[device] = self._unproven.get(device), new
        if known != new:
            LOG.log(level, "GPU %s is not offered: %s", device, new)

    def unavailable(self) -> dict[PciAddress, Reasons]:
        """Return the whole cards that are not offered for lack of a proof, each with the reason."""
        with self._lock:
            unproven = dict(self._unproven)
        return {card: (unproven[card],) for card in devices.cards(unproven)}

    def _forget(self, those: Collection[Device]) -> None:
        with self._lock:
            for device in those:
                self._unproven.pop(device, None)
                self._unwritten.pop(device, None)
