# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu leave``: gives a host's instances with GPUs back to stock Nova, as they run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova import context as nova_context
from nova import objects

from nova_gpu.cmd import services, waiting
from nova_gpu.conf import CONF
from nova_gpu.core import exception, printable
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import proofs
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu_migrate.cmd import adopt
from nova_gpu_migrate.cmd import shadow as shadow_command
from nova_gpu_migrate.cmd.adopt import NotReady
from nova_gpu_migrate.core import leave_plan
from nova_gpu_migrate.core.stock_holding import StockReturn, Stranger
from nova_gpu_migrate.virt import records
from nova_gpu_migrate.virt.leaving import Leaving
from nova_gpu_migrate.virt.shadow import Shadow, ShadowCard

_STOCK = "libvirt.LibvirtDriver"
_STAYS, _UNREAD = 1, 3
_WORDS = "cannot be given back", "to be given back"
_CONTAINERS = (
    "This host's instances are containers, and stock Nova gives containers no GPU: none can be "
    "given back. Resize these to a flavor without GPUs, or delete them: {}"
)


def run(command: Any, line: list[str]) -> int:
    """Run ``nova-gpu leave``.

    :param line: the command line, the program's name included
    :returns: the exit status: 0; 1 if an instance cannot be given back; 3 if a source cannot be
        read
    :raises NotReady: with --apply, if an instance cannot be given back, nova-compute runs, or its
        options are still nova-gpu's
    :raises cfg.Error, OSError, ValueError: as :func:`nova_gpu.cmd.options.read`
    """
    if (reading := shadow_command.read(line, command.aliases)) is None:
        return _UNREAD
    sources, report = reading
    context = nova_context.get_admin_context()
    leavings, spec = report.leavings, CONF.pci.device_spec
    if leavings and CONF.libvirt.virt_type == "lxc":
        print(_CONTAINERS.format(", ".join(item.instance.uuid for item in leavings)))
        return _STAYS
    judged = (
        leave_plan.judge_shelved(it, report.aliases, command.aliases)
        for it in records.shelved(context)
    )
    shelved = tuple(filter(None, judged))
    if command.shelved:
        leavings += shelved
    elif shelved:
        print(adopt.SHELVED.format(", ".join(item.instance.uuid for item in shelved)))
    print(text(leavings, report.consumers))
    for sentence in unfit(report.cards, spec, sources.discovery.roots):
        print(printable.lines(sentence))
    if not command.apply:
        stays = report.consumers or any(item.obstacles for item in leavings)
        return _STAYS if stays else 0
    check(leavings, spec, sources.discovery.roots)
    check_consumers(report)
    check_strangers(report, spec, sources.discovery.roots)
    check_clean(report.cards, spec, sources.discovery)
    with adopt.alone(sources.discovery):
        with waiting.shown("waiting for a report of nova-compute, which must not come"):
            adopt.check_stopped(context, time.sleep)
            adopt.check_unchanged(report, shadow_command.look(sources, command.aliases))
        node = objects.ComputeNode.get_by_host_and_nodename(context, CONF.host, report.node)
        libvirt, roots = services.libvirt(read_only=False), sources.discovery.roots
        giving_back = Leaving(context, sources.placement, node, libvirt, report, roots)
        status = adopt.watched(context, lambda: give_back(giving_back, leavings))
        if status == 0:
            # Last, as a second run after a killed one has to find that free cards are clean. What
            # a killed one leaves, nova-gpu's driver does not trust (stock_records.was_ours).
            adopt.forget(sources.discovery, report, leavings)
    return status


def text(leavings: Sequence[StockReturn], consumers: Sequence[str] = ()) -> str:
    """Return what would be done with *leavings*, as text for people.

    :param consumers: as those of :class:`nova_gpu_migrate.virt.shadow.Shadow`
    """
    if not (leavings or consumers):
        return "No instance of this host has a GPU by nova-gpu: nothing is to be given back."
    lines = [line for item in leavings for line in _lines(item)]
    return printable.lines("\n".join([*lines, *(str(Stranger(uuid)) for uuid in consumers)]))


def _lines(item: StockReturn) -> Iterator[str]:
    yield from adopt.lines(item, *_WORDS)
    for function in item.losses:
        yield (
            f"    stock Nova will start it without {function}; if that is not bound to vfio-pci "
            "at boot, add an alias and a [pci]device_spec for it, or no start succeeds"
        )


def check(leavings: Iterable[StockReturn], spec: Sequence[str], roots: Roots) -> None:
    """Check that all instances can be given back, and that stock Nova will have their cards.

    :param spec: the values of ``[pci]device_spec``
    :raises NotReady: if not
    """
    if adopt.is_own(CONF.compute_driver) or not CONF.compute_driver:
        raise NotReady(
            f"[DEFAULT]compute_driver is {CONF.compute_driver or 'not set'}; set it to {_STOCK}, "
            "and run this before nova-compute starts"
        )
    device_spec = DeviceSpec(spec)
    for item in leavings:
        if item.obstacles:
            raise NotReady(
                f"the instance {item.instance.uuid} cannot be given back, and stock Nova would "
                f"take its cards for free: {item.obstacles[0]}"
            )
        for card in item.functions:
            if device_spec.obstacle([card], roots) is None:
                raise NotReady(
                    f"no [pci]device_spec matches {card}, which the instance "
                    f"{item.instance.uuid} has; add one, and run this again"
                )


def check_consumers(report: Shadow) -> None:
    """Check that Placement counts no GPU here for what is not given back.

    Its count would go, and stock Nova would give its card to another instance: the source's card of
    a resize that may be reverted, or that of an instance about to be built.

    :raises Stranger: if it does
    """
    for uuid in report.consumers:
        raise Stranger(uuid)


def unfit(cards: Iterable[ShadowCard], spec: Sequence[str], roots: Roots) -> Iterator[str]:
    """Yield sentences about cards that stock Nova would give and nova-gpu withholds."""
    device_spec = DeviceSpec(spec)
    for card in cards:
        if card.reason and device_spec.obstacle([card.gpu.address], roots):
            yield (
                f"{card.gpu.address}: stock Nova gives it to instances, and nova-gpu does not: "
                f"{card.reason}"
            )


def check_strangers(report: Shadow, spec: Sequence[str], roots: Roots) -> None:
    """Check that stock Nova will not give cards that other domains have, or functions of them.

    Such a domain may be of an instance that was deleted or evacuated while nova-compute was away.

    :raises NotReady: if it would
    """
    device_spec = DeviceSpec(spec)
    named = {card.gpu.address: card.named for card in report.cards}
    for uuid, cards in report.strangers.items():
        for card in cards:
            if device_spec.obstacle([card, *named[card]], roots):
                raise NotReady(
                    f"the domain {uuid} is no instance of this host and has {card}, which stock "
                    "Nova would take for free; start nova-compute with nova-gpu's driver until it "
                    "has removed the domain, or take the card out of [pci]device_spec"
                )


def check_clean(cards: Iterable[ShadowCard], spec: Sequence[str], discovery: Discovery) -> None:
    """Check that stock Nova, which cleans none, will give no card as its last guest has left it.

    A card that was offered in parts had no guest, and its driver cleans them.

    :raises NotReady: if it would
    """
    device_spec = DeviceSpec(spec)
    free = [card for card in cards if card.start and not card.holders]
    seen = proofs.see([card.gpu for card in free], discovery.roots)
    for card in free:
        gpu = card.gpu
        reason = proofs.missing(discovery.proofs, gpu.address, gpu, seen.get(gpu.address))
        if reason and device_spec.obstacle([gpu.address], discovery.roots):
            # One that is in quarantine, say, is not offered however long nova-compute runs.
            withheld = f"; {card.reason}; then" if card.reason else ";"
            raise NotReady(
                f"{gpu.address}: {reason}, and stock Nova would give it as it is{withheld} start "
                "nova-compute with nova-gpu's driver until nova-gpu list offers it, or take it out "
                "of [pci]device_spec"
            )


def give_back(giving_back: Leaving, leavings: Iterable[StockReturn]) -> int:
    """Give all instances back; return the exit status."""
    try:
        for step in giving_back.steps(leavings):
            adopt.do(step)
    except exception.GPUError as error:
        print(f"nova-gpu: {error}", file=sys.stderr)
        return _STAYS
    return 0
