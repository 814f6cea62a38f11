# SPDX-License-Identifier: Apache-2.0
"""Reports of events of a host's GPUs: in the log, in the counters and as notifications."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from oslo_log import log as logging

from nova_gpu import notifications
from nova_gpu.conf import CONF
from nova_gpu.core import device, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.unavailability import Reasons, Scope, Source, Unavailable
from nova_gpu.notifications import Event, EventType
from nova_gpu.virt import counters
from nova_gpu.virt.inventory.card_groups import CardGroups
from nova_gpu.virt.usage.accounts import Account, Accounts
from nova_gpu.virt.usage.bills import Bills
from nova_gpu.virt.usage.ledger import Owner, Snapshot

LOG = logging.getLogger(__name__)

# The quarantine and the cleaning have reported reasons from these sources already, and a card that
# waits for an extension has no fault.
_TOLD = (Source.QUARANTINE, Source.PROOF, Source.GATE)


class Reporter:
    """The log messages and notifications about one host's GPUs.

    A state that lasts is reported once, and again after it has changed.

    :param accounts: what ``gpu.exists`` is sent of; ``None`` if it is not to be sent
    """

    def __init__(self, accounts: Accounts | None = None) -> None:
        self._accounts = accounts
        self._compute_host = CONF.host
        self._former_reasons: set[tuple[PciAddress, Unavailable | None]] = set()
        self._known: Mapping[PciAddress, Unavailable | None] = {}
        self._bills = Bills()
        self._strangers: Mapping[Device, str] = {}
        self._unjudged: Mapping[Device, str] = {}
        self._reached: Mapping[tuple[str, Device], frozenset[str]] = {}
        self._shared: Mapping[Device, tuple[str, ...]] = {}

    # Guests

    def claimed(
        self, owner: Owner, products: Mapping[Device, Product], overruled: str | None = None
    ) -> None:
        """Report that the instance's guest is about to start here with devices new to it.

        :param overruled: what its flavor requires of them, and they are not
        """
        if news := self._bills.claim(owner, products):
            counters.claimed(len(device.cards(news)), len(device.slots(news)))
            self._emit(EventType.CLAIM, news, owner, overruled)

    def begins(self, instance_uuid: str) -> None:
        """Note that the time of devices that are new to the instance begins here now.

        No other host counts its time any more.
        """
        if self._accounts:
            self._accounts.began(instance_uuid)

    def released(self, owner: Owner, products: Mapping[Device, Product]) -> None:
        """Report that the instance no longer has these devices on this host, once each."""
        if self._accounts and products:
            self._accounts.released(owner.instance_uuid, frozenset(map(str, products)))
        self._emit(EventType.RELEASE, self._bills.release(owner, products), owner)

    def settle_bills(
        self,
        ledger: Callable[[], Snapshot],
        products: Callable[[frozenset[Device]], Mapping[Device, Product]],
    ) -> None:
        """Report the releases of devices that instances lost without a word of Nova's."""
        self._bills.begin(ledger(), products)
        for bill in self._bills.lost(ledger):
            self.released(bill.owner, bill.products)

    def report_usage(
        self,
        now: Snapshot,
        providers: Collection[str],
        products: Callable[[frozenset[Device]], Mapping[Device, Product]],
        faulty: Callable[[Collection[Device]], Collection[Device]],
    ) -> None:
        """Count the GPU seconds of instances, and send those of the hours that are over.

        Do nothing while the host's providers are unknown, as before the first provider tree: the
        time since the last call is counted later.

        :param now: the ledger, whose records were just read
        :param faulty: returns those of an instance's devices that do not work
        """
        if self._accounts is None or now.records is None or not providers:
            return
        held = []
        for uuid, recorded in now.records.own.items():
            devices = frozenset(device.parse(item) for own, item in recorded if own in providers)
            if devices and not CONF.gpu.charge_faulty:
                devices -= frozenset(faulty(devices))
            for event in notifications.of_devices(EventType.EXISTS, products(devices), ""):
                held.append(
                    Account(
                        uuid,
                        now.records.projects.get(uuid),
                        now.records.users.get(uuid),
                        event.product_id or "",
                        event.product,
                        event.architecture,
                        event.vgpu_type,
                        event.addresses,
                    )
                )
        for audit, account, seconds in self._accounts.period(held):
            notifications.emit(
                Event(
                    EventType.EXISTS,
                    len(account.addresses),
                    self._compute_host,
                    account.project_id,
                    account.instance_uuid,
                    account.addresses,
                    account.product_id,
                    account.product,
                    account.architecture,
                    vgpu_type=account.vgpu_type,
                    user_id=account.user_id,
                    usage_id=account.usage_id,
                    audit_period_beginning=audit.begin,
                    audit_period_ending=audit.end,
                    gpu_seconds=seconds,
                    total_gpu_seconds=round(account.reported_seconds, 3),
                )
            )

    # Cards

    def quarantined(self, card: GPU, reason: str, owner: Owner | None = None) -> None:
        """Send the notification that *card* is in quarantine; the caller has logged that."""
        self._emit(EventType.QUARANTINE, {card.address: card.product}, owner, reason)

    def report(
        self,
        gpus: Iterable[GPU],
        unavailable: Mapping[PciAddress, Reasons],
        card_groups: CardGroups,
        owners: Mapping[Device, Owner],
    ) -> None:
        """Report which whole cards are offered now, no longer offered, faulty, or recovered."""
        groups = {a: group for group in card_groups.values() for a in group.gpus}
        cards = {gpu.address: gpu for gpu in gpus}
        cards |= {address: group.gpus[address] for address, group in groups.items()}
        grouped = (own for group in card_groups.values() for own in group.unavailable.items())
        known = {address: unavailability.worst(reasons) for address, reasons in grouped}
        others = {a: unavailability.of_host(own) for a, own in unavailable.items()}
        now = {(a, (known if a in groups else others).get(a)) for a in cards}
        for address, reason in sorted(now - self._former_reasons, key=lambda item: item[0]):
            card = cards[address]
            if address in groups:
                # A gate's reason may be newer than the look.
                own = (*unavailable.get(address, ()), *((reason,) if reason else ()))
                is_told = any(item.source in _TOLD for item in own)
                self._changed(card, reason, owners.get(address), is_told=is_told)
            elif reason is not None:
                LOG.warning("GPU %s (%s) is not offered: %s", address, _name(card), reason)
        self._former_reasons, self._known = now, known

    def _changed(
        self,
        card: GPU,
        reason: Unavailable | None,
        owner: Owner | None,
        *,
        is_told: bool,
    ) -> None:
        address = card.address
        before = self._known.get(address)
        if reason is None and before is None:
            LOG.info("GPU %s (%s) is offered to instances", address, _name(card))
        elif reason is None:
            LOG.info(
                "GPU %s (%s) is offered again; this is over: %s",
                address,
                _name(card),
                before,
            )
            self._emit(EventType.RECOVER, {address: card.product}, owner, str(before))
        elif not is_told:
            self._log_fault(card, reason, owner)
            self._emit(EventType.FAULT, {address: card.product}, owner, str(reason))

    def _log_fault(self, card: GPU, reason: Unavailable, owner: Owner | None) -> None:
        if owner is None:
            text = "GPU %s (%s) is not given to instances: %s"
        elif reason.scope is Scope.ALL:
            text = "GPU %s (%s) does not work for the instance that has it: %s"
        else:
            text = "GPU %s (%s) stays with the instance that has it, and is given to no other: %s"
        instance: dict[str, Any] = {"instance_uuid": owner.instance_uuid} if owner else {}
        LOG.error(text, card.address, _name(card), reason, **instance)

    def report_strangers(
        self,
        strangers: Mapping[Device, str],
        unjudged: Mapping[Device, str],
        reached: Mapping[str, frozenset[Device]] = MappingProxyType({}),
    ) -> None:
        """Log devices that a domain has although Nova does not assign them to its instance.

        :param strangers: the UUID of the domain that has the device, by device
        :param unjudged: likewise, for devices whose owner is unknown until Nova's database answers
        :param reached: the devices that each running container reaches and does not own, by UUID;
            they are left out, because :meth:`report_reached` reports them
        """
        strangers = _without(strangers, reached)
        unjudged = _without(unjudged, reached)
        for address, uuid in strangers.items() - self._strangers.items():
            LOG.error(
                "Instances do not get GPU %s: the domain %s has it, and Nova assigns no such GPU "
                "to it here. An instance that has it by a pci_passthrough:alias keeps it; remove "
                "any other domain that is not needed with virsh.",
                address,
                uuid,
            )
        for address, uuid in unjudged.items() - self._unjudged.items():
            LOG.warning(
                "Instances do not get GPU %s: the domain %s has it, and its owner is unknown until "
                "Nova's database answers. The domain needs no action.",
                address,
                uuid,
            )
        self._strangers, self._unjudged = strangers, unjudged

    def report_shared(self, opened: Mapping[str, frozenset[Device]]) -> None:
        """Log the GPUs that several guests can open, and when only one guest is left.

        nova-gpu never starts two such guests. Either the driver or the operator has changed which
        card a device node leads to, or a domain was edited.
        """
        shared = device.shared(opened)
        for shared_device, uuids in shared.items():
            if uuids != self._shared.get(shared_device):
                LOG.error(
                    "Several guests can open GPU %s: %s. Stop all of them but one now, reboot that "
                    "one with --hard, and start the others again. Until then each can use the GPU "
                    "and read what the others have in its memory.",
                    shared_device,
                    ", ".join(uuids),
                )
        for shared_device in self._shared.keys() - shared.keys():
            LOG.info("Only one guest can open GPU %s now.", shared_device)
        self._shared = shared

    def report_reached(
        self,
        usage: Snapshot,
        products: Callable[[frozenset[Device]], Mapping[Device, Product]],
    ) -> None:
        """Report running guests that reach GPUs other than their own, and those that ended.

        Log an error. Send a notification for the guest, and one for each instance that has the GPU.
        """
        now = {
            (uuid, dev): usage.counted_instances(dev) - {uuid}
            for uuid, devices in usage.reached_of_others().items()
            for dev in devices
        }
        projects = usage.records.projects if usage.records else {}
        for (uuid, item), others in sorted(now.items(), key=str):
            if self._reached.get((uuid, item)) == others:
                continue
            whose = f" and which the instances {', '.join(sorted(others))} have" if others else ""
            LOG.error(
                "The guest %s reaches GPU %s, which is not its own%s: the numbers of device nodes "
                "have changed while it runs, or a card was divided again. No new guest gets that "
                "GPU until this one has ended. Stop the instance, then start it; where two reach "
                "each other's cards, stop both before you start either.",
                uuid,
                item,
                whose,
            )
            names = products(frozenset({item}))
            for owner in (uuid, *sorted(others)):
                reason = (
                    f"the guest {uuid} reaches it, and it is not its own; stop it, then start it"
                )
                host, project_id = self._compute_host, projects.get(owner)
                events = list(notifications.of_devices(EventType.REACHED, names, host, reason))
                if not events:
                    plain = Event(EventType.REACHED, 1, host, addresses=(str(item),), reason=reason)
                    events = [plain]
                for event in events:
                    notifications.emit(event.of(owner, project_id))
        for uuid, dev in self._reached.keys() - now.keys():
            LOG.info("The guest %s, which reached GPU %s, has ended.", uuid, dev)
        self._reached = now

    def report_stopped(
        self, stopped: Mapping[str, str | None], reached: Mapping[str, frozenset[Device]]
    ) -> None:
        """Log which guests were stopped, or could not be, because they reach GPUs of others.

        :param stopped: why the guest could not be stopped, ``None`` if it was, by its UUID
        """
        for uuid, why in stopped.items():
            cards = ", ".join(sorted(map(str, reached.get(uuid, ()))))
            if why is None:
                LOG.error(
                    "Stopped the guest %s, which reached GPUs that are not its own: %s. openstack "
                    "server start %s gives it its own GPUs again.",
                    uuid,
                    cards,
                    uuid,
                )
            else:
                LOG.error(
                    "Failed to stop the guest %s, which reaches GPUs that are not its own, %s: %s. "
                    "Will retry in the next period.",
                    uuid,
                    cards,
                    why,
                )

    def _emit(
        self,
        event_type: EventType,
        products: Mapping[Device, Product],
        owner: Owner | None,
        reason: str | None = None,
    ) -> None:
        for event in notifications.of_devices(event_type, products, self._compute_host, reason):
            notifications.emit(event.of(owner.instance_uuid, owner.project_id) if owner else event)


def _name(card: GPU) -> str:
    return card.product.name or card.product.key


def _without(
    uuids: Mapping[Device, str], reached: Mapping[str, frozenset[Device]]
) -> dict[Device, str]:
    return {item: uuid for item, uuid in uuids.items() if item not in reached.get(uuid, ())}
