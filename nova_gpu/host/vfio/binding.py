# SPDX-License-Identifier: Apache-2.0
"""Binding of a whole card to vfio-pci for guests, and back to its former drivers. For root.

A card that was with vfio-pci already, because it was prepared at boot, stays there for ever.

While a driver does not let go, the kernel holds the function's lock, and a process that reads
driver_override, sriov_numvfs or another attribute that takes it waits as well and cannot be killed.
None of those is read here or anywhere else outside of the script.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nova_gpu.core import exception, model
from nova_gpu.host import child
from nova_gpu.host.pci import consoles, discovery, iommu
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, former_drivers
from nova_gpu.host.state.former_drivers import ByFunction, Former, Formers
from nova_gpu.host.vfio import open_devices, rebinder
from nova_gpu.host.vfio.rebinder import Means

LOG = logging.getLogger(__name__)

IN_USE = "it is in use by processes of the host"
_SEE_KERNEL_LOG = "see the kernel's log about it"


class _NotMoved(Exception):
    error = exception.BindingFailed

    def __init__(
        self,
        reason: str,
        remedy: str = _SEE_KERNEL_LOG,
        *,
        hangs: bool = False,
        others: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.hangs, self.others = reason, remedy, hangs, others


class _NotBegun(_NotMoved):
    """All is as it was."""


class _InUse(_NotBegun):
    error = exception.CardInUse


# One card is moved by one thread at a time.
_locks: Mapping[model.PciAddress, threading.Lock] = collections.defaultdict(threading.Lock)
# What did not end and cannot be killed, with the step it is in.
_hanging: dict[model.PciAddress, tuple[subprocess.Popen[bytes], str]] = {}


def give_to_guests(address: model.PciAddress, means: Means) -> None:
    """Bind all functions of the card to vfio-pci.

    One that is there already stays.

    What drove them is written down first. Where one of them cannot be bound, all are as before.

    :raises BindingFailed: where a process or the host's console uses the card, or the kernel fails
    """
    with _alone(address):
        gpu = discovery.card_at(address, means.roots)
        if gpu is None:
            raise _NotMoved("there is no GPU at this address", "see nova-gpu list")
        functions = gpu.functions
        if iommu.is_prepared(functions, means.roots):
            return
        shown = consoles.console(functions, means.roots)
        if shown:
            raise _NotMoved(shown, "make another display the host's in its firmware")
        _load_driver(means)
        before = former_drivers.load(means.records, address, means.roots)
        now = _drivers(functions, means.roots)
        others = {a: now[a] for a in now if not iommu.is_with_vfio(a, means.roots)}
        records = {item: former for item, former in before.items() if item not in others}
        # As a rule nobody has written one. Where somebody has, it is found before anything moves.
        overrides: ByFunction = dict.fromkeys(others)
        for _ in range(3):
            formers = {other: Former(others[other], overrides[other]) for other in others}
            # One that an earlier try left without a driver had the one that is written down.
            formers |= {a: before[a] for a in others if now[a] is None and a in before}
            former_drivers.save(means.records, address, {**records, **formers}, means.roots)
            binding = _take(gpu, formers, records, overrides, means)
            if binding == overrides:
                return
            overrides = binding
        former_drivers.save(means.records, address, records, means.roots)
        raise _NotMoved("its driver_override changes all the time", "find out who writes it")


def give_to_host(address: model.PciAddress, means: Means) -> None:
    """Give the card's functions back to what drove them before :func:`give_to_guests`.

    Those for which nothing is written down stay as they are, and those that are gone are forgotten.

    :raises BindingFailed: where a guest has the card, or the kernel fails
    """
    with _alone(address):
        formers = former_drivers.load(means.records, address, means.roots)
        gpu = discovery.card_at(address, means.roots) if formers else None
        if gpu is not None:
            now = _drivers(gpu.functions, means.roots)
            ours = (function for function in now if _is_ours(function, now[function], means.roots))
            back = {function: formers[function] for function in ours if function in formers}
            _move(gpu, back, open_devices.numbers(gpu, means.roots), means)
            rebinder.make_ready()
        former_drivers.forget(means.records, address)


def _is_ours(function: model.PciAddress, driver: str | None, roots: Roots) -> bool:
    """Return one without a driver is left over from an earlier try.

    What the operator has bound stays.

    :raises OSError: where the kernel does not tell
    """
    return driver is None or iommu.is_with_vfio(function, roots)


@contextlib.contextmanager
def _alone(address: model.PciAddress) -> Iterator[None]:
    """Let one thread at a time move a card, and name errors after the card."""
    with _locks[address]:
        try:
            yield
        except _NotMoved as error:
            raise error.error(str(address), error.reason, error.remedy, error.others) from error
        except files.Untrusted as error:
            remedy = "remove it; what it says of the card's former driver is lost"
            raise exception.BindingFailed(str(address), str(error), remedy) from error
        except (OSError, ValueError, exception.GPUError) as error:
            raise exception.BindingFailed(str(address), str(error), _SEE_KERNEL_LOG) from error


def _drivers(functions: Iterable[model.PciAddress], roots: Roots) -> ByFunction:
    return {function: iommu.driver(function, roots) for function in functions}


def _take(
    gpu: model.GPU, formers: Formers, formers_kept: Formers, overrides: ByFunction, means: Means
) -> ByFunction:
    """Bind the functions of *formers* to vfio-pci, where *overrides* are what they have.

    :returns: what they have
    :raises _NotMoved: where not all of them are bound; then they are as before
    """
    devices = open_devices.numbers(gpu, means.roots)
    drivers = dict.fromkeys(formers, Former(iommu.DRIVER, iommu.DRIVER))
    try:
        return _move(gpu, drivers, devices, means, overrides)
    except _NotBegun:
        former_drivers.save(means.records, gpu.address, formers_kept, means.roots)
        raise
    except _NotMoved as error:
        # What hangs stays written down, because nobody knows how it ends.
        if not error.hangs:
            _undo(gpu, formers, formers_kept, means)
        raise


def _load_driver(means: Means) -> None:
    """Load vfio-pci where the host has not loaded it.

    :raises _NotMoved: where the host has no vfio-pci
    """
    if (means.roots.sysfs / "bus/pci/drivers" / iommu.DRIVER).is_dir():
        return
    try:
        child.run(["modprobe", iommu.DRIVER], means.timeout_s)
    except child.Failed as error:
        reason = f"modprobe {iommu.DRIVER} {error}"
        raise _NotMoved(reason, "install the kernel's package of extra modules") from error


def _undo(gpu: model.GPU, others: Formers, formers_kept: Formers, means: Means) -> None:
    """Bind the functions back to *others*, their former drivers; keep the record if that fails."""
    try:
        _move(gpu, others, (), means)
    except _NotMoved as error:
        LOG.error("Failed to return GPU %s to its former drivers: %s", gpu.address, error.reason)
    else:
        former_drivers.save(means.records, gpu.address, formers_kept, means.roots)


def _move(
    gpu: model.GPU,
    drivers: Formers,
    devices: Iterable[open_devices.Number],
    means: Means,
    overrides: ByFunction | None = None,
) -> ByFunction:
    """Bind functions to *drivers*, unless a device is open or an override is another.

    :returns: what each of *overrides* is
    :raises _NotMoved: where not all of them are bound within the time
    """
    moves = [
        {"address": str(driver), **dataclasses.asdict(drivers[driver])}
        for driver in sorted(drivers)
    ]
    if not moves:
        return {}
    thought = {str(item): override for item, override in (overrides or {}).items()}
    request = {"devices": sorted(devices), "moves": moves, "overrides": thought}
    present = _ask(gpu, request, means)["overrides"]
    return {model.PciAddress.parse(item): override for item, override in present.items()}


def _ask(gpu: model.GPU, request: Mapping[str, Any], means: Means) -> Mapping[str, Any]:
    """Let the script do what *request* says.

    :raises _NotMoved: where the script is not through with it within the time
    """
    _refuse_hanging(gpu.address)
    if request["devices"] and not means.roots.shows_all_processes():
        raise _NotBegun(open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    try:
        answer = rebinder.move(request, means)
    except child.TimedOut as error:
        step = rebinder.last_line(error.output)
        _hanging[gpu.address] = (error.process, step)
        _refuse_hanging(gpu.address, f" within {means.timeout_s:g} s ([gpu]bind_timeout)")
        failed = _NotBegun if step.startswith(rebinder.LOOKS) else _NotMoved
        raise failed(f"{step} took too long ([gpu]bind_timeout)") from error
    except child.Failed as error:
        raise _NotMoved(f"the process that binds it {error}") from error
    if answer["holders"]:
        who = open_devices.named(answer["holders"])
        raise _InUse(IN_USE, "end that first", others=who)
    if answer["error"]:
        raise _NotMoved(answer["error"])
    return answer


def _refuse_hanging(address: model.PciAddress, limit: str = "") -> None:
    """Refuse a card whose killed process still hangs in the kernel.

    :raises _NotMoved: while it does
    """
    process, step = _hanging.get(address, (None, ""))
    if process is None:
        return
    if process.poll() is None:
        raise _NotMoved(
            f"{step} does not end{limit}",
            f"{_SEE_KERNEL_LOG}; the host has to be booted anew before the card can be used",
            hangs=True,
        )
    del _hanging[address]
