# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu adopt``: takes over instances that have GPUs by stock Nova, as they run.

A check that refuses raises NotReady, with what to do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nova import context as nova_context
from nova import objects, servicegroup
from oslo_config import cfg
from oslo_log import log as logging

from nova_gpu import notifications
from nova_gpu.cmd import services, waiting
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception, names, printable
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, proofs
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu_migrate.cmd import shadow as shadow_command
from nova_gpu_migrate.core import adoption_plan
from nova_gpu_migrate.core.stock_holding import StockHolding, StockReturn
from nova_gpu_migrate.virt import records
from nova_gpu_migrate.virt.adoption import Takeover, Write
from nova_gpu_migrate.virt.shadow import Shadow

LOG = logging.getLogger(__name__)

_DRIVER = "GPULibvirtDriver"
_LEFT, _UNREAD = 1, 3
_FILTER = "GPUFilter"
# For the message bus to take the notifications
_DEADLINE_S = 10.0
# For a step: a minute for each answer of the conductor, and the bus itself is tried for ever.
_STEP_S = 180
_UNFILTERED = (
    "A scheduler without nova-gpu does not know the words that their flavors get, and moves or "
    "unshelves the instances without their GPUs: install nova-gpu on nova-api and nova-scheduler, "
    "enable GPUFilter, and say so with --with-gpufilter"
)
SHELVED = (
    "These shelved instances ask as the aliases of this host do: {}. They can be unshelved on such "
    "hosts only: change them with --shelved, at the last host that changes."
)
_WORDS = "stays stock Nova's", "to be taken over"
# nova-compute reports as often as [DEFAULT]report_interval says.
_REPORTS = 2


class NotReady(exception.GPUError):
    """A host on which nothing can be taken over yet."""


def run(command: Any, line: list[str]) -> int:
    """Run ``nova-gpu adopt``.

    :param line: the command line, the program's name included
    :returns: the exit status: 0; 1 if an instance stays stock Nova's; 3 if a source cannot be read
    :raises NotReady: with --apply, if nova-compute runs or its options are still stock Nova's
    :raises cfg.Error, OSError, ValueError: as :func:`nova_gpu.cmd.options.read`
    """
    if (reading := shadow_command.read(line)) is None:
        return _UNREAD
    sources, report = reading
    context = nova_context.get_admin_context()
    holdings = chosen(report.holdings, command.instances)
    judged = (adoption_plan.judge_shelved(it, report.aliases) for it in records.shelved(context))
    shelved = list(filter(None, judged))
    if command.shelved:
        holdings += shelved
    elif shelved:
        print(SHELVED.format(", ".join(item.instance.uuid for item in shelved)))
    print(text(holdings))
    is_filtered = command.with_gpufilter or not holdings or is_scheduler_ours()
    if not is_filtered:
        print(_UNFILTERED)
    reason = misplaced(report, holdings) or other_types(report, holdings)
    if not command.apply:
        print(printable.lines(reason or ""), end="\n" if reason else "")
        return _LEFT if any(holding.obstacles for holding in holdings) else 0
    if not is_filtered:
        raise NotReady("nothing is taken over without --with-gpufilter")
    check_options(holdings, CONF.pci.device_spec, sources.discovery.roots)
    check_named(report)
    if reason:
        raise NotReady(reason)
    with alone(sources.discovery):
        with waiting.shown("waiting for a report of nova-compute, which must not come"):
            check_stopped(context, time.sleep)
            check_unchanged(report, shadow_command.look(sources))
        forget(sources.discovery, report, holdings)
        node = objects.ComputeNode.get_by_host_and_nodename(context, CONF.host, report.node)
        libvirt = services.libvirt(read_only=False)
        work = Takeover(context, sources.placement, node, libvirt, report)
        return watched(context, lambda: take_over(work, holdings))


def chosen(holdings: Iterable[StockHolding], uuids: Sequence[str]) -> list[StockHolding]:
    """Return the *holdings* of the instances *uuids*, all without any."""
    by_uuid = {holding.instance.uuid: holding for holding in holdings}
    for uuid in uuids:
        if uuid not in by_uuid:
            raise NotReady(
                f"the instance {uuid} has no GPU by stock Nova on this host; see nova-gpu shadow"
            )
    return [by_uuid[uuid] for uuid in uuids] if uuids else list(by_uuid.values())


def text(holdings: Sequence[StockHolding]) -> str:
    """Return what would be done with *holdings*, as text for people."""
    if not holdings:
        return "No instance of this host has a GPU by stock Nova: nothing is to be taken over."
    return printable.lines(
        "\n".join(line for holding in holdings for line in lines(holding, *_WORDS))
    )


def lines(item: StockHolding | StockReturn, stays: str, goes: str) -> Iterator[str]:
    """Yield the lines of one instance's plan: how its flavor changes, or what is in the way.

    :param stays: what becomes of an instance with obstacles; *goes*, of one without
    """
    uuid = item.instance.uuid
    if item.obstacles:
        yield f"{uuid}: {stays}"
        yield from (f"  - {obstacle}" for obstacle in item.obstacles)
        return
    devices = ", ".join(map(str, item.devices)) or "shelved as it is"
    yield f"{uuid}: {goes}, with {devices}"
    yield f"    flavor of the instance: {', '.join(shadow_command.changes(item))}"
    yield from (f"    {remark}" for remark in item.remarks)
    if isinstance(item, StockHolding) and not is_own(CONF.compute_driver):
        yield from (f"    {reason}" for reason in shadow_command.way_back(item))


def is_scheduler_ours() -> bool:
    """Return whether the options of this host, which may be the scheduler's too, have GPUFilter."""
    return _FILTER in CONF.filter_scheduler.enabled_filters


def is_own(compute_driver: str | None) -> bool:
    """Return whether ``[DEFAULT]compute_driver`` names nova-gpu's driver."""
    return (compute_driver or "").rpartition(".")[2] == _DRIVER


def check_options(holdings: Iterable[StockHolding], spec: Sequence[str], roots: Roots) -> None:
    """Check that nova-compute will give these cards by nova-gpu when it starts."""
    if not is_own(CONF.compute_driver):
        raise NotReady(
            f"[DEFAULT]compute_driver is {CONF.compute_driver or 'not set'}, with which "
            "nova-compute would give the cards away again; set it to "
            f"gpu.{_DRIVER}, and run this before it starts"
        )
    device_spec = DeviceSpec(spec)
    for holding in holdings:
        if holding.obstacles:
            continue
        if reason := device_spec.obstacle(holding.functions, roots):
            raise NotReady(reason)
        for slot in holding.slots:
            if slot.type_id in CONF.devices.enabled_mdev_types:
                raise NotReady(
                    f"[devices]enabled_mdev_types names {slot.type_id}, so that stock Nova would "
                    f"go on to divide {slot.parent}; take it out, and run this again"
                )


def misplaced(report: Shadow, holdings: Iterable[StockHolding]) -> str | None:
    """Return that Placement counts a card for an instance that has another one, or ``None``.

    Once the cards are out of ``[pci]device_spec``, Nova removes the provider of a card that no
    instance has, which Placement refuses at each claim and in each period.
    """
    goes = {holding.instance.uuid for holding in holdings if not holding.obstacles}
    for card, consumers in sorted(report.misplaced.items()):
        for consumer in sorted(consumers - goes):
            return (
                f"Placement counts {card} for {consumer}, and Nova's database gives it to no "
                "instance, as after a move of Nova's: no instance could be built on this host "
                "afterwards; confirm or revert the move of that instance, or delete it"
            )
    return None


def other_types(report: Shadow, holdings: Iterable[StockHolding]) -> str | None:
    """Return that new instances of flavors as they are would get vGPUs of other types.

    ``resources:VGPU=1`` gives what stock Nova's options name, and any type that nova-gpu offers: up
    to a whole card. A card that stock Nova divides counts without an instance, too. Return ``None``
    if the operator has chosen the types.
    """
    slots = {
        slot: card
        for holding in holdings
        if any(name.endswith(f":{names.VGPU_RESOURCE_CLASS}") for name in holding.unset)
        for slot, card in holding.slots.items()
    }
    own = {slot.type_id for slot in slots}
    cards = {*slots.values(), *report.divided}
    of_cards = (group for group in report.groups if cards & {*group.cards})
    types = {group.vgpu_type for group in of_cards if group.vgpu_type}
    source = CONF.get_location("vgpu_types", "gpu")
    is_chosen = source is not None and source.location is not cfg.Locations.opt_default
    if is_chosen or not types - own or len(types | own) == 1:
        return None
    former = f"= {','.join(sorted(own))}, as" if own else "to what"
    return (
        "new instances by resources:VGPU would get vGPUs of any type that nova-gpu offers of the "
        f"same cards: {', '.join(sorted(types))}; set [gpu]vgpu_types {former} "
        "[devices]enabled_mdev_types had, or to * for all"
    )


def check_named(report: Shadow) -> None:
    """Check that a domain names each card that stock Nova's records count for an instance.

    nova-gpu reads the domains, and would offer such a card while its instance may come back to it.
    A resize on the same host leaves one until it is confirmed or reverted.
    """
    unnamed = {card.gpu.address for card in report.cards if not card.holders}
    for holding in report.holdings:
        own = holding.instance
        for card in sorted(unnamed & own.recorded.keys() - own.counted):
            raise NotReady(
                f"Nova keeps {card} for the instance {own.uuid}, and no domain has it: "
                f"{holding.obstacles[0]}; until then start nova-compute with the driver it had"
            )


@contextlib.contextmanager
def alone(discovery: Discovery) -> Iterator[None]:
    """Keep other runs of adopt and leave on this host from changing records while this lasts.

    Their plans would be old. The lock, of the folder of nova-gpu's state, ends with the process.
    """
    fd = os.open(discovery.proofs.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise NotReady(
            "another nova-gpu adopt or leave runs on this host; wait until it has ended"
        ) from error
    finally:
        os.close(fd)


def check_stopped(context: nova_context.RequestContext, sleep: Callable[[float], None]) -> None:
    """Wait for two reports of this host's nova-compute, which must not come.

    One that was forced down may run all the same.
    """
    before = _reported(context)
    sleep(_REPORTS * CONF.report_interval)
    if _reported(context) != before:
        raise NotReady(
            f"nova-compute runs on {CONF.host}, and holds in memory what this changes; stop it "
            "(systemctl stop nova-compute), run this again, and start it: guests run on"
        )


def _reported(context: nova_context.RequestContext) -> Any:
    """Return the time of the last report of this host's nova-compute."""
    service = objects.Service.get_by_compute_host(context, CONF.host)
    return servicegroup.API().get_updated_time(service)


def watched(context: nova_context.RequestContext, work: Callable[[], int]) -> int:
    """Do *work* and return its exit status, 1 if nova-compute has started meanwhile.

    Then its PCI tracker may hold records that are gone, on which the end of an instance fails.
    """
    before = _reported(context)
    status = work()
    notifications.wait(_DEADLINE_S)
    if _reported(context) == before:
        return status
    print(
        f"nova-gpu: nova-compute was started on {CONF.host} before this was done, and holds old "
        "records in memory; stop it, run this again, and start it",
        file=sys.stderr,
    )
    return _LEFT


def check_unchanged(before: Shadow, now: Shadow) -> None:
    """Check that nothing changed between the reading and nova-compute's end, or name what did."""
    values = {
        field.name: (getattr(before, field.name), getattr(now, field.name))
        for field in dataclasses.fields(before)
    }
    changed = {name: pair for name, pair in values.items() if pair[0] != pair[1]}
    if changed:
        LOG.debug("Changed since the host was read: %s", changed)
        raise NotReady(
            f"the host has changed since it was read ({', '.join(changed)}); run this again"
        )


def forget(
    discovery: Discovery, report: Shadow, items: Iterable[StockHolding | StockReturn]
) -> None:
    """Remove nova-gpu's files of former guests and providers; nova-compute writes them anew.

    Proofs of cleaning and records of made vGPUs are not of guests that stock Nova has started
    since, and the providers that are made here have other uuids.

    :param items: the instances whose records of made vGPUs are removed, with those that have their
        devices by stock Nova: a way back that was killed may have left the records
    :raises OSError: if a proof or the file of the providers may still exist
    """
    proofs.revoke(discovery.proofs, [card.gpu.address for card in report.cards])
    made = MadeVGPUs(discovery.vgpus)
    uuids = {item.instance.uuid for item in (*items, *report.holdings)}
    for slot, uuid in made.instances().items():
        if uuid in uuids:
            made.remove(slot, uuid)
    files.remove(discovery.providers)


def do(step: Write) -> None:
    """Do *step*, and print its text."""
    try:
        with boundary.crossed(exception.GPUError), waiting.limited(_STEP_S):
            step.do()
    except boundary.Failure as error:
        raise NotReady(f"not done: {step.text}: {error.first_line}; run this again") from error
    print(step.text, flush=True)


def take_over(work: Takeover, holdings: Iterable[StockHolding]) -> int:
    """Take over the instances without obstacles one by one; return the exit status."""
    status = 0
    steps = [*work.begun()]
    for holding in holdings:
        if holding.obstacles:
            status = _LEFT
        else:
            steps.append(work.steps(holding))
    steps.append(work.ended())
    for of_instance in steps:
        try:
            for step in of_instance:
                do(step)
        except exception.GPUError as error:
            print(f"nova-gpu: {error}", file=sys.stderr)
            status = _LEFT
    return status
