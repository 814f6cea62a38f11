# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu shadow``: shows what nova-gpu would do on a host of stock Nova; changes nothing."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import prettytable

from nova_gpu.cmd import card_facts, host_check, options, services, this_host, waiting
from nova_gpu.cmd.output import Format, print_json
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, names, printable
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons
from nova_gpu.host.state import quarantine
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.verify import gather
from nova_gpu_migrate.core.stock_holding import Alias, StockHolding, StockReturn
from nova_gpu_migrate.virt import mdev_types, shadow
from nova_gpu_migrate.virt.shadow import Shadow, ShadowCard, ShadowGroup

# An operator waits: by default the message bus is tried for ever.
_DEADLINE_S = 60.0
_WAITING = "reading sysfs, libvirt, Nova's database and Placement"
_INCOMPLETE = 3
_IN_THE_WAY = 1


def run(command: Any, line: list[str]) -> int:
    """Run ``nova-gpu shadow``.

    :param line: the command line, the program's name included
    :returns: the exit status: 0; 1 if an instance cannot be taken over as it is; 3 if a source
        cannot be read
    :raises cfg.Error, OSError, ValueError: as :func:`nova_gpu.cmd.options.read`
    """
    if (host_sources := sources(line)) is None:
        return _INCOMPLETE
    status = show(host_sources, as_json=command.format == Format.JSON)
    with contextlib.suppress(KeyboardInterrupt):
        while command.every is not None:
            time.sleep(command.every)
            status = show(host_sources, as_json=command.format == Format.JSON)
    return status


@contextlib.contextmanager
def stock_left_out() -> Iterator[None]:
    """Wrap a reading of the host as it is without the options of stock Nova.

    nova-gpu offers no card that they name.
    """
    device_spec, types = CONF.pci.device_spec, CONF.devices.enabled_mdev_types
    CONF.set_override("device_spec", [], "pci")
    CONF.set_override("enabled_mdev_types", [], "devices")
    try:
        yield
    finally:
        CONF.set_override("device_spec", device_spec, "pci")
        CONF.set_override("enabled_mdev_types", types, "devices")


def look(host_sources: gather.Sources, preferred: Collection[str] = ()) -> Shadow:
    """Read the host without the options of stock Nova, which are for what is given back.

    The parameters are those of :func:`nova_gpu_migrate.virt.shadow.look`.
    """
    types, device_spec = mdev_types.read(), CONF.pci.device_spec
    with stock_left_out():
        return shadow.look(host_sources, preferred, types, device_spec)


def unavailable(discovery: Discovery, gpus: Iterable[GPU]) -> dict[PciAddress, Reasons]:
    """Return why *gpus* would not be offered, by card; quarantine is a reason."""
    cards = tuple(gpus)
    reasons = quarantine.unavailable(discovery.quarantine, cards, discovery.roots)
    for card, others in host_check.unavailable(discovery, cards).items():
        reasons[card] = (*reasons.get(card, ()), *others)
    return reasons


def sources(line: list[str]) -> gather.Sources | None:
    """Connect to the message bus; return the objects by which this host and its cloud are read.

    Return ``None``, having said why, if there is no message bus.
    """
    services.read_options(line)
    try:
        services.connect()
    except boundary.Failure as error:
        print(services.no_bus(error), file=sys.stderr)
        return None
    with stock_left_out():
        discovery = this_host.discover()
    return gather.Sources(
        discovery,
        services.libvirt(),
        services.Placement(),
        functools.partial(unavailable, discovery),
        waiting.within(_DEADLINE_S),
    )


def read(line: list[str], preferred: Collection[str] = ()) -> tuple[gather.Sources, Shadow] | None:
    """Read the host for a command that changes records, and by what it was read.

    Return ``None``, having said why, if a source does not answer. The parameters are those of
    :func:`sources` and of :func:`look`.
    """
    if (host_sources := sources(line)) is None:
        return None
    print(options.files_told())
    with waiting.shown(_WAITING):
        report = look(host_sources, preferred)
    if report.unread:
        print("\n".join(f"nova-gpu: {reason}" for reason in report.unread), file=sys.stderr)
        return None
    return host_sources, report


def show(host_sources: gather.Sources, *, as_json: bool) -> int:
    """Read the host once, print what nova-gpu would do, and return the exit status."""
    with waiting.shown(_WAITING):
        report = look(host_sources)
    if as_json:
        print_json(as_plain(report))
    else:
        print(text(report))
    sys.stdout.flush()
    if report.unread:
        return _INCOMPLETE
    return _IN_THE_WAY if any(holding.obstacles for holding in report.holdings) else 0


def as_plain(report: Shadow) -> dict[str, Any]:
    """Return *report* as values for JSON; unknown values are ``None``."""
    return {
        "host": CONF.host,
        "node": report.node,
        "groups": [
            {
                "provider": group.provider,
                "resource_class": group.resource_class,
                "product_id": group.product.key,
                "model": group.product.name,
                "architecture": group.product.architecture,
                "memory_mib": group.product.memory_mib,
                "vgpu_type": group.vgpu_type,
                "total": group.total,
                "cards": [str(card) for card in group.cards],
            }
            for group in report.groups
        ],
        "cards": [
            {
                **card_facts.facts(card.gpu),
                "offered": card.reason is None,
                "reason": card.reason,
                "instances": list(card.holders),
                "stock_providers": list(card.providers),
                "start": card.start or None,
                "release": card.release or None,
                "cleaning": card.cleaning or None,
            }
            for card in report.cards
        ],
        "aliases": [
            {
                "name": alias.name,
                "cards": [str(card) for card in alias.cards],
                "set": dict(alias.set),
            }
            for alias in report.aliases
        ],
        "instances": [_plain(holding) for holding in report.holdings],
        "other_domains": {
            uuid: [str(card) for card in cards] for uuid, cards in report.strangers.items()
        },
        "not_read": list(report.unread),
    }


def _plain(holding: StockHolding) -> dict[str, Any]:
    choice = holding.choice
    return {
        "uuid": holding.instance.uuid,
        "flavor": holding.instance.flavor,
        "by": [str(way) for way in holding.deliveries],
        "devices": [str(dev) for dev in holding.devices],
        "set": dict(holding.set),
        "unset": list(holding.unset),
        "can_be_taken_over": not holding.obstacles,
        "obstacles": [
            {"reason": obstacle.reason, "remedy": obstacle.remedy} for obstacle in holding.obstacles
        ],
        "remarks": [*holding.remarks, *way_back(holding)],
        "choice": choice
        and {
            "cards": [str(card) for card in choice.cards],
            "longest_path_now": choice.paths[0],
            "longest_path_then": choice.paths[1],
        },
    }


def text(report: Shadow) -> str:
    """Return *report* as text for people."""
    # Where a source was not read, nothing is said of what was not found.
    of_groups, of_holdings = _groups(report.groups), _holdings(report.holdings)
    parts = [
        of_groups if report.groups or not report.unread else "",
        _cards(report.cards),
        _aliases(report.aliases),
        of_holdings if report.holdings or not report.unread else "",
    ]
    parts += [
        f"{uuid} is a domain with {', '.join(map(str, cards))} and no instance of this host: "
        "these cards stay reserved until it is gone"
        for uuid, cards in report.strangers.items()
    ]
    parts += [f"Not read: {reason}" for reason in report.unread]
    return printable.lines("\n".join(part for part in parts if part))


def _groups(groups: tuple[ShadowGroup, ...]) -> str:
    if not groups:
        return "nova-gpu would offer no GPU of this host."
    shown = prettytable.PrettyTable(["Provider", "Class", "Total", "Model", "Cards"], align="l")
    for group in groups:
        model = group.product.name or group.product.key
        cards = "\n".join(map(str, group.cards))
        shown.add_row([group.provider, group.resource_class, group.total, model, cards])
    return f"nova-gpu would offer:\n{shown.get_string()}"


def _cards(cards: tuple[ShadowCard, ...]) -> str:
    """Return a line for each sentence about cards, and for each provider of stock Nova."""
    addresses: dict[str, list[str]] = {}
    for card in cards:
        steps = [step for step in (card.start, card.release, card.cleaning) if step]
        what = f"would not be offered: {card.reason}" if card.reason else "; ".join(steps)
        alike = addresses.setdefault(what or "would be offered in parts", [])
        alike.append(str(card.gpu.address))
    lines = [f"{', '.join(alike)}: {what}" for what, alike in addresses.items()]
    lines += [
        f"{name} is stock Nova's provider of {card.gpu.address}"
        for card in cards
        for name in card.providers
    ]
    return "\n".join(lines)


def _aliases(aliases: tuple[Alias, ...]) -> str:
    return "\n".join(
        f"A flavor with {names.PCI_ALIAS}={alias.name}:N says to nova-gpu: {_in_words(alias.set)}"
        if alias.set
        else f"The alias {alias.name} gives cards of several products: each needs its own flavor"
        for alias in aliases
    )


def _in_words(properties: Mapping[str, str]) -> str:
    numbers = dict.fromkeys(properties.keys() & {names.GPUS, names.VGPUS}, "= N")
    return ", ".join(f"{name}='{numbers.get(name, properties[name])}'" for name in properties)


def _holdings(holdings: tuple[StockHolding, ...]) -> str:
    if not holdings:
        return "No instance of this host has a GPU by stock Nova."
    titles = ["Instance", "Flavor", "By", "Has", "Flavor for nova-gpu", "Can be taken over"]
    shown = prettytable.PrettyTable(titles, align="l")
    for holding in holdings:
        shown.add_row(
            [
                holding.instance.uuid,
                holding.instance.flavor,
                "\n".join(holding.deliveries),
                "\n".join(map(str, holding.devices)),
                "\n".join(changes(holding)),
                "no" if holding.obstacles else "yes",
            ]
        )
    return "\n".join([shown.get_string(), *_remarks(holdings)])


def changes(item: StockHolding | StockReturn) -> list[str]:
    """Return how the instance's flavor changes, one text for each property."""
    properties = [f"{name}='{value}'" for name, value in item.set.items()]
    return [*properties, *(f"without {name}" for name in item.unset)]


def way_back(holding: StockHolding) -> list[str]:
    """Return why the options of today would not give the instance back to stock Nova."""
    reason = "nova-gpu leave could not give it back by the present options"
    return [f"{reason}: {obstacle}" for obstacle in holding.back]


def _remarks(holdings: tuple[StockHolding, ...]) -> Iterator[str]:
    for holding in holdings:
        sentences = [str(obstacle) for obstacle in holding.obstacles]
        sentences = sentences or [*holding.remarks, *way_back(holding)]
        yield from (f"{holding.instance.uuid}: {sentence}" for sentence in sentences)
        if choice := holding.choice:
            cards = ", ".join(map(str, choice.cards))
            yield (
                f"{holding.instance.uuid}: nova-gpu would have chosen {cards} (longest path "
                f"{choice.paths[1]} instead of {choice.paths[0]})"
            )
