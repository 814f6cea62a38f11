# SPDX-License-Identifier: Apache-2.0
"""The GPUs of one compute host: what it has, what it offers, and who has what."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from nova import objects
from nova.compute import provider_tree as nova_provider_tree
from nova.virt import virtapi as nova_virtapi
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPUGroup, GroupKey
from nova_gpu.host.roots import Roots
from nova_gpu.virt import bulletin, libvirt_version, periodic
from nova_gpu.virt.contained import contained
from nova_gpu.virt.delivery.delivery import Delivery, Given
from nova_gpu.virt.health import left_mig, monitor, xids
from nova_gpu.virt.inventory import offer as offers
from nova_gpu.virt.inventory import provider_tree, providers, stock, stranding, survey
from nova_gpu.virt.lifecycle import releases, vgpus
from nova_gpu.virt.usage import census, ledger
from nova_gpu.virt.verify import abandoned, orphans, reconcile

LOG = logging.getLogger(__name__)


class HostGPUs:
    """What the driver knows and does.

    All of it is derived: from sysfs, from libvirt's domains, from Nova's database. Those are read
    at start, in every period and when a guest was started or removed, never while a claim waits.
    """

    def __init__(self, host: libvirt_host.Host, virtapi: nova_virtapi.VirtAPI) -> None:
        self._host = host
        self._virtapi = virtapi
        self._ledger = ledger.Ledger()
        self.bulletin = bulletin.Bulletin()
        self._survey = survey.Survey(
            self._ledger,
            libvirt_version.LibvirtVersion(lambda: host.get_connection().getLibVersion()),
        )
        self.ways = self._survey.ways
        self.delivery = self.ways.whole
        self._watch = monitor.Watch(self.roots, asks_nvml=self.delivery.shares_driver)
        self._stock = stock.Stock(self._ledger, self.delivery)
        self.vgpus = vgpus.VGPUs(self._survey, self._ledger)
        self._step = periodic.Step(
            self._survey, self._watch, self._stock, self.vgpus, self.bulletin
        )
        self._census = census.Census(
            host, self._ledger, lambda: self._survey.parts(self.offer, self.vgpus.divided())
        )
        self._abandoned = abandoned.AbandonedMoves(CONF.host)
        self._orphans = orphans.Orphans()
        self._reconciliation = reconcile.Reconciliation(
            self._survey, host, lambda: virtapi.reportclient
        )
        self.releases = releases.Releases(
            self._survey,
            self._stock,
            self._ledger,
            self._census,
            self.bulletin,
            self._watch.mended,
            self.vgpus,
            self.delivery.restore,
        )
        self.delivery.judge_by(
            lambda card: left_mig.judge(card, self.roots, self.releases.put_away)
        )
        self._xids = xids.Xids(self.roots)
        self._providers = providers.Providers(pathlib.Path(CONF.state_path, "gpu-providers"))

    @property
    def offer(self) -> offers.Offer:
        return self._stock.offer

    @property
    def has_gpus(self) -> bool:
        """Whether it offers any, whole or in parts"""
        return bool(self.offer or self.vgpus)

    @property
    def roots(self) -> Roots:
        return self._survey.roots

    @property
    def hypervisor_type(self) -> str:
        """What this host reports to Nova: ``LXC`` or ``QEMU``"""
        return str(self._host.get_driver_type())

    # Looking

    def begin(self) -> None:
        """At service start, before guests are resumed: look, and have there what cards lack."""
        self.refresh(starting=True)
        with contained("Device nodes and libraries of guests were not looked at"):
            cards = (*self._stock.cards(), *self.vgpus.containers_cards())
            self.delivery.serve(cards, self._host)

    def refresh(self, *, starting: bool = False) -> None:
        """Looks at the host, at libvirt and at the database. What cannot be read stays as it was.

        Where it fails of anything else nobody new gets a card before a look that does not.
        :param starting: look even where there is no card: an instance may have one that is gone
        """
        with contained("GPU discovery failed; no GPU is given to new instances until it succeeds"):
            try:
                self._look(starting)
            except Exception:
                self._stock.keep_back({c.address: periodic.UNSEEN for c in self._stock.cards()})
                self.vgpus.cards.withhold(periodic.UNSEEN)
                raise

    def _look(self, starting: bool) -> None:
        self.releases.resume()
        say = self._step.look()
        if starting or self.has_gpus or self._stock.provider_uuids:
            self._census.look_again()
            if self._census.read_records():
                if starting and self.vgpus.divide():
                    say = self._step.look()
                if starting and self.vgpus and self._knows_providers():
                    say = self._step.look()  # again: whose cards are whole is known now
                    self.vgpus.make_again()
                self.releases.settle(starting=starting)
                # A card that could not be reset may take the host's driver with it.
                stay = self._stock.kept_back() | self.releases.left()
                self.delivery.settle(self._stock.cards(), stay)
                if not starting:  # then Nova has not looked at its instances yet
                    self._end_moves()
                self._reconciliation.look()
        self.delivery.restore()
        say()
        cards = (*self._stock.cards(), *self.vgpus.containers_cards())
        self._xids.look(cards, self.releases.put_away)
        self.vgpus.keep_failed()
        self.vgpus.cards.withhold_slots(self._xids.withheld(self.vgpus.cards.look.cards.values()))

    def _knows_providers(self) -> bool:
        try:
            self.ask_for_providers()
        except Exception as error:  # whatever Placement or the way there raise
            LOG.warning("vGPUs of instances are made when those start: %s", error)
            return False
        return True

    def _end_moves(self) -> None:
        """What Nova does not give back when it ended in the midst of a move."""
        client = self._virtapi.reportclient
        self._abandoned.end(
            client, self._host.get_hostname(), lambda uuid: self._ledger.now.had_by(uuid)
        )
        providers = frozenset(self._provider_uuids().values())
        self._orphans.release(client, providers, self._ledger.now.instances())

    def _provider_uuids(self) -> dict[GroupKey, str]:
        """Of all its groups, by what is known"""
        return {**self._stock.provider_uuids, **self.vgpus.stock.provider_uuids}

    # Publishing

    def update_provider_tree(self, tree: nova_provider_tree.ProviderTree, nodename: str) -> None:
        """Writes the groups into the tree, from what is known. Runs inside every claim."""
        with contained("Placement may not be told of all of this host's GPUs"):
            try:
                self._stock.publish(tree, nodename, self.hypervisor_type)
                self.vgpus.stock.publish(tree, nodename, self.hypervisor_type)
            except Exception:
                provider_tree.refuse_claims(tree, nodename, self._ledger.now.recorded)
                raise
            self._providers.keep(nodename, self._provider_uuids())
            usage = self._ledger.now
            self.bulletin.report_strangers(usage.strangers(), usage.unjudged(), usage.reached)
            self._reconciliation.is_due = True

    def stats(self) -> str | None:
        """What the scheduler reads of this host, ``None`` without GPUs or where that is not known:
        then nobody who asks for some is sent here."""
        with contained("The scheduler is not told of this host's GPUs"):
            if self.has_gpus:
                each, free = stranding.reserved(), self._stock.free()
                divided = self.vgpus.stock.divided()
                return offers.report(self.offer, self.hypervisor_type, free, each, divided)
        return None

    def free(self) -> int:
        """How many cards there are of which an instance could be given one now, or a part"""
        return len(self._stock.free()) + self.vgpus.stock.divided().free

    @property
    def placement(self) -> Any:
        """Nova's client of it"""
        return self._virtapi.reportclient

    @property
    def nodename(self) -> str:
        return str(self._host.get_hostname())

    # Guests

    @contextlib.contextmanager
    def held(self, instance_uuid: str, addresses: frozenset[Device]) -> Iterator[frozenset[Device]]:
        """Holds *addresses* while a guest is started with them, and what else it has of ours.

        Gives what the guest had before, or has as long as it is rebuilt.

        While Nova reboots a guest it has no domain: a card that it has by an alias would seem free.

        :raises DeviceUnavailable: when another start or domain has one of them
        :raises DomainsUnreadable: when nobody can say so
        """
        kept = self._ledger.now.kept_by(instance_uuid)
        if not addresses | kept:
            yield kept
            return
        look = self._census.look_at_domains
        with self._ledger.hold(instance_uuid, addresses, look, kept):
            try:
                yield kept
            finally:
                self.delivery.started(instance_uuid)

    def deliveries(self, given: Iterable[Given]) -> Iterator[tuple[Delivery, list[Given]]]:
        """What a guest is given, by how it gets it"""
        return self.ways.deliveries(given, self.vgpus.cards.look.kind)

    def held_for(self, instance_uuid: str) -> frozenset[Device]:
        """What is held for a start of the instance that is under way"""
        return self._ledger.now.held_for(instance_uuid)

    def named_by(self, instance_uuid: str) -> frozenset[Device]:
        """What the instance's domain names, or named before it went to come back"""
        return self._ledger.now.kept_by(instance_uuid)

    def group_of(self, provider_uuid: str) -> GPUGroup | None:
        """Which of this host's groups a provider stands for, ``None`` for another host's.

        Guests are resumed before the first provider tree is made: then what was kept is asked, or
        Placement.

        :raises ProvidersUnknown: where neither says so
        """
        self.ask_for_providers()
        return self._stock.group_of(provider_uuid)

    def ask_for_providers(self) -> None:
        """Looks up which providers stand for this host's groups, once.

        :raises ProvidersUnknown: where nobody says so
        """
        if self._provider_uuids():
            return  # without asking libvirt for the node's name: this is in the way of every start
        keys = (*self.offer, *self.vgpus.keys())
        for key, uuid in self._providers.of(self.placement, self.nodename, keys).items():
            (self.vgpus.stock if key.is_in_parts else self._stock).provider_uuids[key] = uuid

    def end(self, instance: objects.Instance) -> None:
        """Waits for the end of a guest that Nova is about to destroy; a host without GPUs leaves it
        to Nova.

        :raises nova.exception.InstancePowerOffFailure: where it does not end
        """
        if self.has_gpus:
            self.delivery.end(self._host, instance)

    def go_to_guest(self, addresses: frozenset[Device]) -> None:
        """From now on a guest may have used them."""
        self._ledger.was_used(addresses)
