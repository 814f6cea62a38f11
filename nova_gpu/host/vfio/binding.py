# SPDX-License-Identifier: Apache-2.0
"""Whole cards between the host and guests: their binding to vfio-pci and back, and their reset.

Needs root. A card that was bound to vfio-pci at boot (``nova-gpu host prepare``) stays bound to it.

While a driver does not release a function, the kernel holds the function's lock. A process that
reads driver_override, sriov_numvfs or another attribute that takes the lock waits too, and cannot
be killed. So only :mod:`nova_gpu.host.vfio.card_script` reads them, in a process of its own.

The former drivers of a card's functions are recorded in one file for each card. Only root writes
the files, and root trusts no other user's. All users may see which cards have one. A boot of the
host binds drivers anew, so a file from an earlier boot is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nova_gpu.core import exception, json_text, model
from nova_gpu.host import child_process, processes
from nova_gpu.host.pci import consoles, discovery, iommu, sysfs
from nova_gpu.host.processes import Holder, Number
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu.host.vfio import open_devices

LOG = logging.getLogger(__name__)

_SCRIPT = child_process.source(pathlib.Path(__file__).with_name("card_script.py"), processes)
# How the names of the script's steps before any binding begin
_LOOKS = ("looking", "reading")
_SETTLE_S = 5.0
_SEE_KERNEL_LOG = "see the kernel's log about it"
_SEARCHES_LONG = "end a process of the host that hangs, or raise [gpu]clean_timeout"
_WITHOUT_RESET = (
    "; a card without a reset of its own needs a slot whose bus it does not share, or "
    "[gpu]require_reset = false"
)

_DRIVER = re.compile(r"[\w-]+", re.ASCII)
# The errors of parsing a file that :func:`record` did not write
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, exception.InvalidPciAddress)

_BUS = "bus"
_LOOK_AGAIN_S = 0.2


@dataclasses.dataclass(frozen=True, slots=True)
class RebindSettings:
    """The settings for binding and resetting cards.

    ``records`` is the folder in which the cards' former drivers are recorded. ``timeout_s`` is the
    limit for all steps with one card together.
    """

    roots: Roots
    records: pathlib.Path
    timeout_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class FormerDriver:
    """The driver that one PCI function had before it was bound to vfio-pci.

    ``driver`` is ``None`` if it had none. ``override`` is the former value of the function's
    driver_override, ``None`` if it was empty; it may name another driver than ``driver``.
    """

    driver: str | None
    override: str | None = None


Formers = Mapping[model.PciAddress, FormerDriver]  # by function
ByFunction = Mapping[model.PciAddress, str | None]  # a driver, an override


class _NotMoved(Exception):
    """A card whose functions were not bound to the wanted drivers.

    ``others`` are the processes that have the card open, as text. ``error`` is the exception that
    callers of this module get.
    """

    error = exception.BindingFailed

    def __init__(
        self, reason: str, remedy: str = _SEE_KERNEL_LOG, *, others: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.others = reason, remedy, others


class _Hangs(_NotMoved):
    """A card whose script was killed and hangs in the kernel: it is unknown what it does."""


class _NotBegun(_NotMoved):
    """A failure before the driver of any function was changed."""


class _InUse(_NotBegun):
    """A card that processes of the host have open, or may have."""

    error = exception.CardInUse


# One thread at a time binds a card. An address is hashed and compared in Python, so that threads
# that meet a card first at the same time would each add a lock of their own.
_locks: dict[model.PciAddress, threading.Lock] = {}
_adding = threading.Lock()
# Killed processes that have not ended, with the step they hang in. Nothing else may be tried with
# such a card.
_hanging: dict[model.PciAddress, tuple[subprocess.Popen[bytes], str]] = {}


def give_to_guests(address: model.PciAddress, settings: RebindSettings) -> None:
    """Bind all functions of the card to vfio-pci, except those that are bound to it already.

    Their present drivers are recorded first. If a function cannot be bound, all get their former
    drivers back.

    :raises BindingFailed: if a process or the host's console uses the card, or the kernel fails
    """
    with _alone(address):
        gpu = discovery.card_at(address, settings.roots)
        if gpu is None:
            raise _NotMoved("there is no GPU at this address", "see nova-gpu list")
        functions = gpu.functions
        if iommu.is_prepared(functions, settings.roots):
            return
        shown = consoles.console(functions, settings.roots)
        if shown:
            raise _NotMoved(shown, "make another display the host's in its firmware")
        _load_driver(settings)
        before = former_drivers(settings.records, address, settings.roots)
        now = _drivers(functions, settings.roots)
        others = {a: now[a] for a in now if not iommu.is_with_vfio(a, settings.roots)}
        records = {item: former for item, former in before.items() if item not in others}
        # driver_override is usually empty. If an operator has set it, that is found before anything
        # is bound.
        overrides: ByFunction = dict.fromkeys(others)
        for _ in range(3):
            formers = {other: FormerDriver(others[other], overrides[other]) for other in others}
            # A function that an earlier try left without a driver had the one in the record.
            formers |= {a: before[a] for a in others if now[a] is None and a in before}
            record(settings.records, address, {**records, **formers}, settings.roots)
            binding = _take(gpu, formers, records, overrides, settings)
            if binding == overrides:
                return
            overrides = binding
        record(settings.records, address, records, settings.roots)
        raise _NotMoved(
            "its driver_override changes all the time",
            "find the program that writes it, and stop it",
        )


def give_to_host(address: model.PciAddress, settings: RebindSettings) -> None:
    """Bind the card's functions to the drivers that :func:`give_to_guests` has recorded for them.

    Functions without a record stay as they are, as do those that the operator has bound to another
    driver than vfio-pci since. Then remove the record.

    :raises BindingFailed: if a guest has the card, or the kernel fails
    """
    with _alone(address):
        formers = former_drivers(settings.records, address, settings.roots)
        gpu = discovery.card_at(address, settings.roots) if formers else None
        if gpu is not None:
            now, roots = _drivers(gpu.functions, settings.roots), settings.roots
            # After an attempt that failed, a function has no driver.
            ours = (a for a in now if now[a] is None or iommu.is_with_vfio(a, roots))
            back = {function: formers[function] for function in ours if function in formers}
            _move(gpu, back, open_devices.numbers(gpu, roots), settings)
        record(settings.records, address, {}, settings.roots)


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
    gpu: model.GPU,
    formers: Formers,
    records: Formers,
    overrides: ByFunction,
    settings: RebindSettings,
) -> ByFunction:
    """Bind the functions of *formers* to vfio-pci, if their driver_override is as in *overrides*.

    After a failure they get their drivers in *formers* back. *records* are those of the card's
    other functions. Return their present driver_override, which differs from *overrides* if
    nothing was bound.
    """
    devices = open_devices.numbers(gpu, settings.roots)
    drivers = dict.fromkeys(formers, FormerDriver(iommu.DRIVER, iommu.DRIVER))
    try:
        return _move(gpu, drivers, devices, settings, overrides)
    except _NotBegun:
        record(settings.records, gpu.address, records, settings.roots)
        raise
    except _Hangs:
        raise  # it stays in the record, because it is unknown how the attempt ends
    except _NotMoved:
        _undo(gpu, formers, records, settings)
        raise


def _load_driver(settings: RebindSettings) -> None:
    if (settings.roots.sysfs / "bus/pci/drivers" / iommu.DRIVER).is_dir():
        return
    try:
        child_process.run(["modprobe", iommu.DRIVER], settings.timeout_s)
    except child_process.Failed as error:
        reason = f"modprobe {iommu.DRIVER} {error}"
        raise _NotMoved(reason, "install the kernel's package of extra modules") from error


def _undo(gpu: model.GPU, others: Formers, records: Formers, settings: RebindSettings) -> None:
    """Bind functions of *gpu* to their former drivers *others*, and remove those records."""
    try:
        _move(gpu, others, (), settings)
    except _NotMoved as error:
        LOG.error(
            "Failed to return GPU %s to its former drivers after it was not bound to vfio-pci: %s; "
            "%s",
            gpu.address,
            error.reason,
            error.remedy,
        )
    else:
        record(settings.records, gpu.address, records, settings.roots)


def _move(
    gpu: model.GPU,
    drivers: Formers,
    devices: Iterable[Number],
    settings: RebindSettings,
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
    task = {"devices": sorted(devices), "moves": moves, "overrides": thought}
    if task["devices"] and not settings.roots.shows_all_processes():
        raise _NotBegun(open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    try:
        answer = _ask(gpu.address, task, settings)
    except child_process.TimedOut as error:
        _refuse_hanging(gpu.address, f" within {settings.timeout_s:g} s ([gpu]bind_timeout)")
        step = _last_line(error.output)
        failed = _NotBegun if step.startswith(_LOOKS) else _NotMoved
        raise failed(f"{step} took too long ([gpu]bind_timeout)") from error
    except child_process.Failed as error:
        raise _NotMoved(f"the process that binds it {error}") from error
    if holders := answer["holders"]:
        reason, remedy = open_devices.reason(holders)
        raise _InUse(reason, remedy, others=open_devices.as_text(holders))
    if answer["error"]:
        raise _NotMoved(answer["error"])
    return {model.PciAddress.parse(a): override for a, override in answer["overrides"].items()}


# The script


def _ask(
    address: model.PciAddress, task: Mapping[str, Any], settings: RebindSettings
) -> Mapping[str, Any]:
    """Have the script do its *task* with one card, and return its answer.

    :raises _Hangs: if an earlier script for the card still hangs
    :raises Failed: if the script fails
    :raises TimedOut: if it does not end in time; until it does, the card is refused
    """
    _refuse_hanging(address)
    try:
        return _run(task, settings)
    except child_process.TimedOut as error:
        _hanging[address] = error.process, _last_line(error.output)
        raise


def _refuse_hanging(address: model.PciAddress, limit: str = "") -> None:
    """Refuse a card while a script that was killed still hangs in the kernel."""
    process, step = _hanging.get(address, (None, ""))
    if process is None:
        return
    if process.poll() is None:
        raise _Hangs(
            f"{step} does not end{limit}",
            f"{_SEE_KERNEL_LOG}; end what may have the card open unseen, such as a file in a "
            "socket's queue, or boot the host before the card is used again",
        )
    _hanging.pop(address, None)


def _run(task: Mapping[str, Any], settings: RebindSettings) -> Mapping[str, Any]:
    roots = {"sysfs": str(settings.roots.sysfs), "proc": str(settings.roots.proc)}
    stdin = json.dumps({**roots, "settle_s": _SETTLE_S, **task}).encode() + b"\n"
    output = child_process.run(child_process.script(_SCRIPT), settings.timeout_s, stdin)
    answer: Mapping[str, Any] = json_text.parse(_last_line(output))
    return answer


def _last_line(output: bytes) -> str:
    """Return the last line of *output*: the script's answer, or the step in which it hangs."""
    return output.decode(errors="replace").strip().rpartition("\n")[2]


# Open devices


def in_use(
    addresses: Iterable[model.PciAddress], settings: RebindSettings
) -> Mapping[model.PciAddress, list[Holder]]:
    """Return the processes of the host that have one of these cards open, by card.

    A process that cannot be looked into may have each of them open.
    """
    gpus = discovery.cards_at(addresses, settings.roots)
    devices_by_card = {gpu.address: open_devices.numbers(gpu, settings.roots) for gpu in gpus}
    devices = {device for devices in devices_by_card.values() for device in devices}
    if not devices:
        return {}
    who: dict[model.PciAddress, list[Holder]] = {}
    for holder in _run({"devices": sorted(devices)}, settings)["holders"]:
        for address, own in devices_by_card.items():
            if own and (holder[2] is None or not own.isdisjoint(map(tuple, holder[2]))):
                who.setdefault(address, []).append(holder)
    return who


# Resets. The file ``reset`` of a function may exist and be useless: the kernel looks for methods
# when it finds the function, and function 0 is found while it is still alone on its bus. Its method
# ``bus`` is then refused ever after, because a reset of the bus would affect its neighbours
# (drivers/pci/pci.c, pci_parent_bus_reset; Documentation/ABI/testing/sysfs-bus-pci, reset_method).
# Such a card is reset with its whole bus by VFIO, to which all of its functions are bound then.
# VFIO also does that by itself when the last guest releases the card
# (drivers/vfio/pci/vfio_pci_core.c, vfio_pci_dev_set_try_reset), but does not report whether it
# did.


def reset(
    gpu: model.GPU, settings: RebindSettings, *, required: bool = True, bus: bool = False
) -> None:
    """Reset all functions of *gpu*, which must be bound to VFIO and not used by a guest.

    :param required: if false, a card that no method can reset passes, if it answers
    :param bus: reset its whole bus, also if its functions can be reset alone; the kernel refuses
        that if a device of another IOMMU group is on the bus
    :raises NotCleanedYet: if the search for processes that have it open takes too long
    :raises NotClean: if a function is not reset, or does not answer afterwards
    """
    address, roots = str(gpu.address), settings.roots
    if not roots.shows_all_processes():
        raise exception.NotClean(address, open_devices.UNSEEN, open_devices.UNSEEN_REMEDY)
    remedy = f"{_SEE_KERNEL_LOG}; if the card stays in this state, boot the host"
    try:
        error = _still_in_use(gpu, settings)
        if error is None:
            own = not bus and resets_functions(gpu, roots)
            error = _reset(gpu, "functions" if own else _BUS, settings)
            if error and not own and not bus:
                remedy += _WITHOUT_RESET
                error = error if required else _reset(gpu, None, settings)
    except OSError as failure:
        error = str(failure)
    if error:
        raise exception.NotClean(address, error, remedy)


def resets_functions(gpu: model.GPU, roots: Roots) -> bool:
    """Return whether each function of the card is reset alone; otherwise its whole bus is."""
    return all(_has_method(function, roots) for function in gpu.functions)


def _still_in_use(gpu: model.GPU, settings: RebindSettings) -> str | None:
    """Wait half of ``timeout_s``, as QEMU takes time to end; return who has the card open."""
    deadline = time.monotonic() + settings.timeout_s / 2
    try:
        while who := in_use([gpu.address], settings).get(gpu.address):
            if time.monotonic() > deadline:
                return f"it is still in use by {open_devices.as_text(who)}"
            time.sleep(_LOOK_AGAIN_S)
    except child_process.Failed as error:
        reason = f"the search for processes that have it open {error}"
        # Any process of the host may have caused that.
        if isinstance(error, child_process.TimedOut):
            raise exception.NotCleanedYet(str(gpu.address), reason, _SEARCHES_LONG) from error
        return reason
    return None


def _has_method(function: model.PciAddress, roots: Roots) -> bool:
    """Return whether the function can be reset by its file ``reset``."""
    device = sysfs.device(function, roots)
    names = os.listdir(device)
    if "reset" not in names:
        return False
    if "reset_method" not in names:  # before Linux 5.15
        return _is_alone(device)
    methods = sysfs.attribute(device, "reset_method").split()
    return any(method != _BUS for method in methods) or (_BUS in methods and _is_alone(device))


def _is_alone(device: str) -> bool:
    """Return whether the function is the only one on its bus."""
    neighbours = 0
    for name in os.listdir(os.path.dirname(os.path.realpath(device))):
        with contextlib.suppress(exception.InvalidPciAddress):
            model.PciAddress.parse(name)
            neighbours += 1
    return neighbours == 1


def _reset(gpu: model.GPU, way: str | None, settings: RebindSettings) -> str | None:
    """Reset the card in this *way* of the script; return why that failed, else ``None``."""
    task = {
        "functions": [str(function) for function in gpu.functions],
        "way": way,
        "vfio": str(settings.roots.dev / "vfio"),
        "wait_s": settings.timeout_s / 2,
    }
    try:
        error: str | None = _ask(gpu.address, task, settings)["error"]
    except _Hangs:
        return "an earlier reset of it does not end"
    except child_process.TimedOut as failure:
        return f"{_last_line(failure.output)} did not end in {settings.timeout_s:g} s"
    except child_process.Failed as failure:
        return f"the process that resets it {failure}"
    return error


# The records of former drivers


def recorded(folder: pathlib.Path) -> frozenset[model.PciAddress]:
    """Return the cards that have a record, even from an earlier boot; none if it is unknown."""
    try:
        return frozenset(files.cards(folder))
    except OSError:
        return frozenset()


def former_drivers(folder: pathlib.Path, card: model.PciAddress, roots: Roots) -> Formers:
    """Return the former drivers of the functions of *card*; empty without a record of this boot.

    :raises Untrusted: if another user could have written the file, or it cannot be read or parsed
    """
    path = files.of_card(folder, card)
    try:
        content = files.read_json(path, trusted=True)
        if content["boot_id"] != roots.boot_id():
            return {}
        overrides = content.get("overrides", {})
        return {
            model.PciAddress.parse(address): FormerDriver(
                _checked(driver), _checked(overrides.get(address))
            )
            for address, driver in content["functions"].items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise files.Untrusted(f"{path} cannot be read: {error.strerror}") from error
    except _NOT_OURS as error:
        raise files.Untrusted(f"{path} cannot be understood: {error!r}") from error


def record(folder: pathlib.Path, card: model.PciAddress, formers: Formers, roots: Roots) -> None:
    """Record the former drivers of the functions of *card*; if there are none, remove the file."""
    path = files.of_card(folder, card)
    if not formers:
        files.remove(path, trusted=True)
        return
    content = {
        "boot_id": roots.boot_id(),
        "functions": {str(address): former.driver for address, former in formers.items()},
        "overrides": {str(a): former.override for a, former in formers.items() if former.override},
    }
    with contextlib.suppress(FileExistsError):  # if only as a link, which is not believed
        folder.mkdir(mode=0o755)
    files.write_json(path, content, mode=0o600, trusted=True)


def _checked(name: str | None) -> str | None:
    # It becomes part of a path.
    if name is not None and not _DRIVER.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a driver")
    return name
