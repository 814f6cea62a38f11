# SPDX-License-Identifier: Apache-2.0
"""Binding of a whole card to vfio-pci for guests, and back to its former drivers. Needs root.

A card that was bound to vfio-pci at boot (``nova-gpu host prepare``) stays bound to it.

While a driver does not release a function, the kernel holds the function's lock. A process that
reads driver_override, sriov_numvfs or another attribute that takes the lock waits too, and cannot
be killed. So only :mod:`nova_gpu.host.vfio.rebind_script` reads them, in a process of its own.
"""

from __future__ import annotations

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
from nova_gpu.host.processes import Number
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files, former_drivers
from nova_gpu.host.state.former_drivers import ByFunction, Former, Formers
from nova_gpu.host.vfio import open_devices, rebinder
from nova_gpu.host.vfio.rebinder import Means

LOG = logging.getLogger(__name__)

_SEE_KERNEL_LOG = "see the kernel's log about it"


class _NotMoved(Exception):
    """A card whose functions were not bound to the wanted drivers.

    ``hangs``: the script hangs in the kernel. ``others`` are the processes that have the card open,
    as text. ``error`` is the exception that callers of this module get.
    """

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
    """A failure before the driver of any function was changed."""


class _InUse(_NotBegun):
    """A card that processes of the host have open, or may have."""

    error = exception.CardInUse


# One thread at a time binds a card. An address is hashed and compared in Python, so that threads
# that meet a card first at the same time would each add a lock of their own.
_locks: dict[model.PciAddress, threading.Lock] = {}
_adding = threading.Lock()
# Killed processes that have not ended, with the step they hang in.
_hanging: dict[model.PciAddress, tuple[subprocess.Popen[bytes], str]] = {}


def give_to_guests(address: model.PciAddress, means: Means) -> None:
    """Bind all functions of the card to vfio-pci, except those that are bound to it already.

    Their present drivers are recorded first. If a function cannot be bound, all get their former
    drivers back.

    :raises BindingFailed: if a process or the host's console uses the card, or the kernel fails
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
        # driver_override is usually empty. If an operator has set it, that is found before anything
        # is bound.
        overrides: ByFunction = dict.fromkeys(others)
        for _ in range(3):
            formers = {other: Former(others[other], overrides[other]) for other in others}
            # A function that an earlier try left without a driver had the one in the record.
            formers |= {a: before[a] for a in others if now[a] is None and a in before}
            former_drivers.save(means.records, address, {**records, **formers}, means.roots)
            binding = _take(gpu, formers, records, overrides, means)
            if binding == overrides:
                return
            overrides = binding
        former_drivers.save(means.records, address, records, means.roots)
        raise _NotMoved(
            "its driver_override changes all the time",
            "find the program that writes it, and stop it",
        )


def give_to_host(address: model.PciAddress, means: Means) -> None:
    """Bind the card's functions to the drivers that :func:`give_to_guests` has recorded for them.

    Functions without a record stay as they are. Then remove the record.

    :raises BindingFailed: if a guest has the card, or the kernel fails
    """
    with _alone(address):
        formers = former_drivers.load(means.records, address, means.roots)
        gpu = discovery.card_at(address, means.roots) if formers else None
        if gpu is not None:
            now = _drivers(gpu.functions, means.roots)
            ours = (function for function in now if _is_ours(function, now[function], means.roots))
            back = {function: formers[function] for function in ours if function in formers}
            _move(gpu, back, open_devices.numbers(gpu, means.roots), means)
        former_drivers.forget(means.records, address)


def _is_ours(function: model.PciAddress, driver: str | None, roots: Roots) -> bool:
    """Return whether VFIO has the function, or no driver has, as after an attempt that failed.

    One that the operator has bound to another driver stays.
    """
    return driver is None or iommu.is_with_vfio(function, roots)


@contextlib.contextmanager
def _alone(address: model.PciAddress) -> Iterator[None]:
    """Admit one thread at a time to a card; turn errors into BindingFailed with its address."""
    with _adding:
        lock = _locks.setdefault(address, threading.Lock())
    with lock:
        try:
            yield
        except _NotMoved as error:
            raise error.error(str(address), error.reason, error.remedy, error.others) from error
        except files.Untrusted as error:
            remedy = "remove it, and bind the card to the host's driver by hand"
            raise exception.BindingFailed(str(address), str(error), remedy) from error
        except (OSError, ValueError, exception.GPUError) as error:
            raise exception.BindingFailed(str(address), str(error), _SEE_KERNEL_LOG) from error


def _drivers(functions: Iterable[model.PciAddress], roots: Roots) -> ByFunction:
    return {function: iommu.driver(function, roots) for function in functions}


def _take(
    gpu: model.GPU, formers: Formers, formers_kept: Formers, overrides: ByFunction, means: Means
) -> ByFunction:
    """Bind the functions of *formers* to vfio-pci, if their driver_override is as in *overrides*.

    After a failure they get their drivers in *formers* back. *formers_kept* are the records of the
    card's other functions. Return their present driver_override, which differs from *overrides* if
    nothing was bound.
    """
    devices = open_devices.numbers(gpu, means.roots)
    drivers = dict.fromkeys(formers, Former(iommu.DRIVER, iommu.DRIVER))
    try:
        return _move(gpu, drivers, devices, means, overrides)
    except _NotBegun:
        former_drivers.save(means.records, gpu.address, formers_kept, means.roots)
        raise
    except _NotMoved as error:
        # A function that hangs stays in the record, because it is unknown how the attempt ends.
        if not error.hangs:
            _undo(gpu, formers, formers_kept, means)
        raise


def _load_driver(means: Means) -> None:
    if (means.roots.sysfs / "bus/pci/drivers" / iommu.DRIVER).is_dir():
        return
    try:
        child.run(["modprobe", iommu.DRIVER], means.timeout_s)
    except child.Failed as error:
        reason = f"modprobe {iommu.DRIVER} {error}"
        raise _NotMoved(reason, "install the kernel's package of extra modules") from error


def _undo(gpu: model.GPU, others: Formers, formers_kept: Formers, means: Means) -> None:
    """Bind functions of *gpu* to their former drivers *others*, and remove those records."""
    try:
        _move(gpu, others, (), means)
    except _NotMoved as error:
        LOG.error(
            "Failed to return GPU %s to its former drivers after it was not bound to vfio-pci: %s; "
            "%s",
            gpu.address,
            error.reason,
            error.remedy,
        )
    else:
        former_drivers.save(means.records, gpu.address, formers_kept, means.roots)


def _move(
    gpu: model.GPU,
    drivers: Formers,
    devices: Iterable[Number],
    means: Means,
    overrides: ByFunction | None = None,
) -> ByFunction:
    """Bind functions of *gpu* to *drivers*, and return driver_override of those in *overrides*.

    Bind nothing if a process has one of *devices* open, or a value in *overrides* is another now.
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
    """Run the rebind script with *request* and return its answer."""
    _refuse_hanging(gpu.address)
    if request["devices"] and not means.roots.shows_all_processes():
        raise _NotBegun(open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    try:
        answer = rebinder.run(request, means)
    except child.TimedOut as error:
        step = rebinder.last_line(error.output)
        _hanging[gpu.address] = (error.process, step)
        _refuse_hanging(gpu.address, f" within {means.timeout_s:g} s ([gpu]bind_timeout)")
        failed = _NotBegun if step.startswith(rebinder.LOOKS) else _NotMoved
        raise failed(f"{step} took too long ([gpu]bind_timeout)") from error
    except child.Failed as error:
        raise _NotMoved(f"the process that binds it {error}") from error
    if holders := answer["holders"]:
        reason, remedy = open_devices.reason(holders)
        raise _InUse(reason, remedy, others=open_devices.as_text(holders))
    if answer["error"]:
        raise _NotMoved(answer["error"])
    return answer


def _refuse_hanging(address: model.PciAddress, limit: str = "") -> None:
    """Refuse a card while a rebind script that was killed still hangs in the kernel."""
    process, step = _hanging.get(address, (None, ""))
    if process is None:
        return
    if process.poll() is None:
        raise _NotMoved(
            f"{step} does not end{limit}",
            f"{_SEE_KERNEL_LOG}; end what may have the card open unseen, such as a file in a "
            "socket's queue, or boot the host before the card is used again",
            hangs=True,
        )
    del _hanging[address]
