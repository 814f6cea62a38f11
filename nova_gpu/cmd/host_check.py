# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu host check``: reports what prevents guests from getting each card."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import pathlib
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from nova_gpu.cmd import board, this_host
from nova_gpu.cmd.output import NO_CARDS, Format, print_json
from nova_gpu.conf import CONF, NOVAS
from nova_gpu.core import printable, unavailability, vendors
from nova_gpu.core.guest import address_space
from nova_gpu.core.guest.address_space import Guest
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source
from nova_gpu.core.vgpu.vgpu import DividedCard
from nova_gpu.host import pci_errors as host_health
from nova_gpu.host import processes, processor
from nova_gpu.host.pci import acs, iommu, kfd
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import quarantine
from nova_gpu.host.vfio import boot_configuration, open_devices, passthrough
from nova_gpu.host.vgpu import virtual_functions
from nova_gpu.virt.card_sets import Sets
from nova_gpu.virt.delivery import guest_address_space
from nova_gpu.virt.health import failed_starts
from nova_gpu.virt.inventory import joined_cards
from nova_gpu.virt.inventory.discovery import Discovery, of_all, reached

# By the ID in os-release, since which version (NVIDIA's AI Enterprise 8)
_MIGRATING = {"rhel": (9, 4), "ubuntu": (24, 4)}
_FOR_CONTAINERS = "containers use it through the host's driver, which stays bound"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The findings about one card.

    ``drivers`` are the drivers of its PCI functions, by address. ``obstacles`` are sentences about
    what keeps guests from getting it, with remedies. ``remarks`` are notes, such as how many such
    cards fit into a guest.
    """

    address: str
    name: str
    drivers: dict[str, str | None]
    obstacles: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def check(discovery: Discovery, root: pathlib.Path) -> list[Finding]:
    """Check all cards of the host and return the findings about each.

    :param root: the folder that contains /lib/modules
    :raises DiscoveryFailed: if the host's cards cannot be listed
    """
    gpus = discovery.find()
    parts, others = discovery.in_parts(gpus)
    reasons = unavailability.merge(
        quarantine.unavailable(discovery.quarantine, gpus, discovery.roots),
        quarantine.unbound(discovery.deliveries.unbound, gpus),
        others,
        failed_starts.of_cards(gpus, parts, discovery.roots),
    )
    alike = collections.Counter(gpu.product for gpu in gpus if gpu.address not in parts)
    findings = [
        _in_parts(discovery, gpu, parts[gpu.address], root, reasons.get(gpu.address, ()))
        if gpu.address in parts
        else _finding(discovery, gpu, root, reasons.get(gpu.address, ()), alike[gpu.product])
        for gpu in gpus
    ]
    sets = discovery.deliveries.sets
    return [_on_board(pair, gpu, sets) for pair, gpu in zip(findings, gpus, strict=True)]


def _on_board(finding: Finding, gpu: GPU, sets: Sets) -> Finding:
    faults, remarks = board.text().of_card(sets, gpu.address)
    obstacles = tuple(dict.fromkeys([*finding.obstacles, *faults]))
    return dataclasses.replace(finding, obstacles=obstacles, remarks=(*finding.remarks, *remarks))


def _in_parts(
    discovery: Discovery, gpu: GPU, card: DividedCard, root: pathlib.Path, reasons: Reasons
) -> Finding:
    remark = "offered in parts, as vGPUs (see nova-gpu list)"
    if card.has_instances:
        remark = "offered in parts, as its MIG instances (see nova-gpu list)"
    elif card.parents.keys() == {gpu.address}:
        remark += "; without a value of [gpu]vgpu_types it is offered whole"
    obstacles, drivers = tuple(map(str, reasons)), {str(gpu.address): gpu.driver}
    remarks = (
        remark,
        *_of_plain(gpu, card, root, discovery.roots),
        *_of_migration(gpu, card, discovery.roots),
        *_of_isolation(discovery, gpu),
    )
    return Finding(str(gpu.address), _name(gpu), drivers, obstacles, () if obstacles else remarks)


def _of_plain(gpu: GPU, card: DividedCard, root: pathlib.Path, roots: Roots) -> Iterator[str]:
    """Yield remarks about virtual functions that guests get as they are."""
    if not card.is_plain:
        return
    if text := virtual_functions.unlimited(gpu.address, len(card.parents), roots):
        yield text
    plain = [a for a in card.parents if iommu.driver(a, roots) == iommu.DRIVER]
    if gpu.driver == "xe" and plain and boot_configuration.module_kind(root, "xe_vfio_pci"):
        yield (
            f"its function {min(plain)} is bound to vfio-pci, and not to xe-vfio-pci, which waits "
            "for the card's reset of it between two guests; bind it to that, or to no driver"
        )
    if others := sorted(reached(gpu, card, roots) - {gpu.address}):
        listed = ", ".join(map(str, others))
        yield f"its parts may reach the memory of {listed}: " + (
            "[gpu]split_link_groups lets several guests have them, which can read each other's"
            if CONF.gpu.split_link_groups
            else "one guest at a time gets parts of these cards"
        )


def _of_migration(gpu: GPU, card: DividedCard, roots: Roots) -> Iterator[str]:
    """Yield a remark if NVIDIA does not support live migration of vGPUs on the host's system.

    Only root can read which system that is: nova-compute may run in a container of another one.
    """
    if gpu.product.vendor_id != vendors.NVIDIA or card.has_instances:
        return
    with contextlib.suppress(OSError, ValueError):
        text = (roots.proc / "1/root/etc/os-release").read_bytes().decode()
        fields = dict(word.partition("=")[::2] for word in shlex.split(text, comments=True))
        oldest = _MIGRATING.get(fields.get("ID", ""))
        version = tuple(map(int, fields.get("VERSION_ID", "0").split(".")))
        if oldest is None or version < oldest:
            yield (
                "NVIDIA supports live migration of guests with its vGPUs on RHEL since 9.4 and "
                f"Ubuntu since 24.04, and this host runs {fields.get('PRETTY_NAME', 'another one')}"
            )


def _of_partitions(gpu: GPU, roots: Roots) -> Iterator[str]:
    """Yield a remark about an AMD card in partitions, which containers do not get one by one."""
    if mode := kfd.partition_mode(gpu.address, roots):
        yield f"it is partitioned ({mode}): a container gets the card with all its partitions"


def _name(gpu: GPU) -> str:
    return gpu.product.name or gpu.product.key


def _finding(
    discovery: Discovery, gpu: GPU, root: pathlib.Path, known: Reasons, alike: int
) -> Finding:
    """Check one card.

    :param known: why nova-compute does not offer the card, from readings of all cards
    :param alike: how many cards of its product the host has
    """
    functions = gpu.functions
    broken = host_health.unusable(gpu, discovery.roots)
    own = (*known, broken, *discovery.of_card(gpu)[:1])
    reasons = [str(function) for function in own if function]
    remarks: tuple[str, ...] = ()
    if not discovery.delivery.shares_driver:
        reasons += passthrough.obstacles(
            gpu, discovery.roots, guest_address_space.of_host(discovery.roots)
        )
        reasons += _module_missing(discovery.roots, root)
    try:
        drivers = {str(function): iommu.driver(function, discovery.roots) for function in functions}
        if not discovery.delivery.shares_driver:
            reasons += in_use(gpu, discovery.roots)
            remarks = () if reasons else tuple(_remarks(discovery, gpu, root, alike))
        elif not reasons:
            remarks = (_FOR_CONTAINERS, *_of_partitions(gpu, discovery.roots))
    except (OSError, ValueError) as error:
        drivers = {}
        reasons.append(passthrough.unread(error))
    return Finding(str(gpu.address), _name(gpu), drivers, tuple(dict.fromkeys(reasons)), remarks)


def unavailable(discovery: Discovery, gpus: Iterable[GPU]) -> dict[PciAddress, Reasons]:
    """Return why *gpus* would not be offered because of the host's state or its options, by card.

    Open device nodes are a reason on KVM hosts; users other than root see their own only.
    """
    reasons = {}
    for gpu in gpus:
        if own := discovery.of_card(gpu):
            reasons[gpu.address] = own
        elif not discovery.delivery.shares_driver:
            for text in in_use(gpu, discovery.roots):
                reasons |= of_all(Source.IN_USE, {gpu.address: text})
    return reasons


def _module_missing(roots: Roots, root: pathlib.Path) -> Iterator[str]:
    loaded = (roots.sysfs / "bus/pci/drivers" / iommu.DRIVER).is_dir()
    if not loaded and boot_configuration.module_kind(root) is None:
        yield (
            f"kernel {os.uname().release} has no module vfio-pci; install the package with its "
            "further modules, or another kernel"
        )


def in_use(gpu: GPU, roots: Roots) -> Iterator[str]:
    """Yield a sentence if processes of the host have the card open, or if that is unknown.

    A card that is bound to vfio-pci can only be in use by a guest, which is no reason.
    """
    prepared = iommu.is_prepared(gpu.functions, roots)
    if not prepared and not roots.shows_all_processes():
        yield f"{open_devices.UNSEEN}; {open_devices.UNSEEN_REMEDY}"
    elif not prepared and (who := _holders(gpu, roots)):
        yield f"it is in use by {who}; end that first"


def _holders(gpu: GPU, roots: Roots) -> str:
    holders = processes.holders(str(roots.proc), open_devices.numbers(gpu, roots))
    # Without root's rights most processes cannot be looked into.
    return open_devices.as_text(holder for holder in holders if holder[2] or os.geteuid() == 0)


def _remarks(discovery: Discovery, gpu: GPU, root: pathlib.Path, alike: int) -> Iterator[str]:
    roots = discovery.roots
    if not iommu.is_prepared(gpu.functions, roots):
        first = "it is bound to vfio-pci when a guest gets it and given back afterwards"
        unbound = [f for f in gpu.functions if not iommu.is_with_vfio(f, roots)]
        built_in = boot_configuration.taken_before(unbound, root, roots)
        if len(built_in) < len(unbound):
            yield f"{first}; nova-gpu host prepare binds it when the host boots"
        else:
            names = ", ".join(f"{function} ({driver})" for function, driver in built_in.items())
            yield f"{first}; drivers that are built into the kernel take {names} at boot"
        if os.geteuid() != 0:
            yield "processes of other users that have it open are seen by root only"
    elif who := _holders(gpu, roots):
        yield f"a guest has it: {who}"
    if card := passthrough.card_bars(gpu, roots):
        size = address_space.in_gib(address_space.window(card))
        yield f"it maps {size} GiB of memory; {_largest_guest(card, roots, alike)}"
    unlimited = guest_address_space.unlimited(roots, discovery.libvirt_version())
    if unlimited and NOVAS.libvirt.cpu_mode in guest_address_space.AS_THE_HOST:
        yield unlimited
    yield from _of_isolation(discovery, gpu)


def _of_isolation(discovery: Discovery, gpu: GPU) -> Iterator[str]:
    if discovery.delivery.shares_driver:
        return
    yield from discovery.joined_cards.remarks(gpu.address)
    if parameter := acs.unsafe_interrupts(discovery.roots):
        yield joined_cards.UNSAFE_INTERRUPTS.format(parameter)


def _largest_guest(card: address_space.Bars, roots: Roots, alike: int) -> str:
    """Return how many such cards a guest with all of the host's memory has room for, as text."""
    room = guest_address_space.of_host(roots)
    if room.given_gib is not None:
        return f"guests have room for {room.given_gib} GiB"
    memory = processor.installed_memory(roots)
    of_bios, of_uefi = (
        room.most_cards(card, Guest(memory, uefi=uefi), alike) for uefi in (False, True)
    )
    fitting = f"{of_bios} of these"
    if of_bios != of_uefi:
        fitting = f"{of_uefi} of these with UEFI, {of_bios} with BIOS"
    return f"the largest guest, of {room.most} address bits: {fitting}"


def text(findings: list[Finding]) -> str:
    """Return the findings as text for people. Equal sentences about several cards stand once."""
    lines: list[str] = []
    first: dict[tuple[str, ...], str] = {}
    for finding in findings:
        verdict = "cannot be given to a guest" if finding.obstacles else "can be given to a guest"
        lines.append(f"{finding.address} ({finding.name}): {verdict}")
        drivers = finding.drivers.items()
        lines += [
            f"    {function} is bound to {driver or 'no driver'}" for function, driver in drivers
        ]
        sentences = [f"  - {reason}" for reason in finding.obstacles]
        sentences += [f"    {remark}" for remark in finding.remarks]
        alike = first.setdefault(tuple(sentences), finding.address)
        if sentences and alike != finding.address:
            sentences = [f"    and all that is said of {alike}"]
        lines += sentences
    if len(findings) > 1:
        refused = ", ".join(finding.address for finding in findings if finding.obstacles)
        lines.append(f"Cards: {len(findings)}; cannot be given to a guest: {refused or 'none'}")
    return printable.lines("\n".join(lines))


def run(command: Any, _: list[str]) -> int:
    as_json = command.format == Format.JSON
    return main(this_host.discover(), pathlib.Path("/"), as_json=as_json)


def main(discovery: Discovery, root: pathlib.Path, *, as_json: bool) -> int:
    """Print the findings about all cards of the host.

    :returns: the exit status: 0 if the host has cards and guests can get each of them, else 1
    """
    findings = check(discovery, root)
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    elif findings:
        print(text(findings))
    else:
        print(NO_CARDS)
    return 0 if findings and not any(finding.obstacles for finding in findings) else 1
